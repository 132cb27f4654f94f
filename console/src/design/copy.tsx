import { Check, Copy } from "lucide-react";
import { useEffect, useState } from "react";
import { t } from "../text/language";
import { IconButton } from "./button";

const SHOWN = 2000;

export function CopyButton({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), SHOWN);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <IconButton
      label={t(copied ? "copied" : "copy")}
      size="small"
      onClick={async () => {
        await navigator.clipboard.writeText(text);
        setCopied(true);
      }}
    >
      {copied ? <Check size={15} aria-hidden="true" className="text-good" /> : <Copy size={15} aria-hidden="true" />}
    </IconButton>
  );
}
