/** Offers bytes or text as a file to keep. */
export function save(name: string, parts: BlobPart[], type = "application/octet-stream"): void {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
