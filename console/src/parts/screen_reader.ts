const SETTING = "screen-reader";

/** Whether terminals put what they show into the page as text, too: for those who hear it. It costs typing from panels
 * of the system, which terminals then have to take themselves. */
export function readsScreen(): boolean {
  return localStorage.getItem(SETTING) === "on";
}

/** Changes it for all terminals of this browser, open ones as well. */
export function chooseReader(on: boolean): void {
  localStorage.setItem(SETTING, on ? "on" : "off");
}

/** Calls back when another document of this browser has changed it. */
export function onReaderChosen(changed: (on: boolean) => void): void {
  window.addEventListener("storage", ({ key }) => {
    if (key === SETTING || key === null) changed(readsScreen());
  });
}
