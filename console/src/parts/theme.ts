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

show(theme());
