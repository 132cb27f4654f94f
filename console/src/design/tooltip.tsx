import {
  cloneElement,
  type FocusEvent,
  type PointerEvent,
  type ReactElement,
  type ReactNode,
  Suspense,
  useEffect,
  useState,
} from "react";
import { lazy } from "../parts/lazy";

// What places it is loaded with the first one that is shown.
const Popup = lazy(() => import("./tooltip_popup"));
const DELAY = 400;

interface Handlers {
  onPointerEnter?: (event: PointerEvent<Element>) => void;
  onPointerLeave?: (event: PointerEvent<Element>) => void;
  onPointerDown?: (event: PointerEvent<Element>) => void;
  onFocus?: (event: FocusEvent<Element>) => void;
  onBlur?: (event: FocusEvent<Element>) => void;
}

/** Says more about what is pointed at or focused. It is no control's only name. */
export function Tooltip({ label, children }: { label: ReactNode; children: ReactElement<Handlers> }) {
  const [anchor, setAnchor] = useState<Element>();
  const [shown, setShown] = useState(false);
  useEffect(() => {
    if (anchor === undefined) return;
    const timer = setTimeout(() => setShown(true), DELAY);
    return () => {
      clearTimeout(timer);
      setShown(false);
    };
  }, [anchor]);
  const hide = () => setAnchor(undefined);
  const own = children.props;
  return (
    <>
      {cloneElement(children, {
        onPointerEnter: (event) => {
          own.onPointerEnter?.(event);
          if (event.pointerType !== "touch") setAnchor(event.currentTarget);
        },
        onPointerLeave: (event) => {
          own.onPointerLeave?.(event);
          hide();
        },
        onPointerDown: (event) => {
          own.onPointerDown?.(event);
          hide();
        },
        onFocus: (event) => {
          own.onFocus?.(event);
          if (event.currentTarget.matches(":focus-visible")) setAnchor(event.currentTarget);
        },
        onBlur: (event) => {
          own.onBlur?.(event);
          hide();
        },
      })}
      {shown && anchor !== undefined && (
        <Suspense>
          <Popup anchor={anchor} label={label} onClose={hide} />
        </Suspense>
      )}
    </>
  );
}
