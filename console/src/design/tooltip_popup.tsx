import { Tooltip as Base } from "@base-ui/react/tooltip";
import type { ReactNode } from "react";

/** The words of a tooltip beside their element. Escape closes it. */
export default function TooltipPopup({
  anchor,
  label,
  onClose,
}: {
  anchor: Element;
  label: ReactNode;
  onClose: () => void;
}) {
  return (
    <Base.Root open disableHoverablePopup onOpenChange={(open) => !open && onClose()}>
      <Base.Portal>
        <Base.Positioner anchor={anchor} sideOffset={6} className="pointer-events-none z-50">
          <Base.Popup className="max-w-80 rounded-md bg-ink px-2 py-1 text-xs whitespace-pre-line text-page shadow-pop">
            {label}
          </Base.Popup>
        </Base.Positioner>
      </Base.Portal>
    </Base.Root>
  );
}
