export type Theme = "system" | "light" | "dark";
const SETTING = "theme";

export function theme(): Theme {
  const chosen = localStorage.getItem(SETTING);
  return chosen === "light" || chosen === "dark" ? chosen : "system";
}

export function chooseTheme(chosen: Theme): void {
  localStorage.setItem(SETTING, chosen);
  show(chosen);
}

function show(chosen: Theme): void {
  document.documentElement.style.colorScheme = chosen === "system" ? "light dark" : chosen;
}

const DARK = "(prefers-color-scheme: dark)";

/** Tells now, and whenever it changes, whether the page is dark: what draws with colours of its own needs that. */
export function onDark(tell: (dark: boolean) => void): void {
  const system = matchMedia(DARK);
  const look = () => {
    const chosen = theme();
    show(chosen);
    tell(chosen === "dark" || (chosen === "system" && system.matches));
  };
  system.addEventListener("change", look);
  // Another document of the console chose.
  window.addEventListener("storage", look);
  look();
}

show(theme());
