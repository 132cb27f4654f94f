import type { ReactNode } from "react";
import { Sheet } from "../design/dialog";

/** The navigation of a telephone. */
export default function Drawer({ children, onClose }: { children: ReactNode; onClose: () => void }) {
  return (
    <Sheet title="Retinue" side="left" onClose={onClose}>
      {children}
    </Sheet>
  );
}
