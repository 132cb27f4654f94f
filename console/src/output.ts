/**
 * Shows what users' code made, in a sandbox without an origin: no cookie, no network, no page around it.
 * Scripts in it do not run: they are parsed, not written.
 */
window.addEventListener("message", (event: MessageEvent<{ html?: unknown }>) => {
  if (event.source !== window.parent || typeof event.data.html !== "string") return;
  document.body.innerHTML = event.data.html;
  report();
});

function report(): void {
  window.parent.postMessage({ height: document.documentElement.scrollHeight }, "*");
}

new ResizeObserver(report).observe(document.documentElement);
window.parent.postMessage({ ready: true }, "*");
