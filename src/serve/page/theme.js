// Dark or light: the system's choice until the user makes another.
const root = document.documentElement;

export function theme() {
  return localStorage.getItem("quern.theme") ?? "system";
}

export function setTheme(name) {
  if (name === "system") localStorage.removeItem("quern.theme");
  else localStorage.setItem("quern.theme", name);
  show();
}

export function isDark() {
  return theme() === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme() === "dark";
}

function show() {
  if (theme() === "system") delete root.dataset.theme;
  else root.dataset.theme = theme();
}

export function themeButton(button) {
  button.addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
}

addEventListener("storage", (e) => e.key === "quern.theme" && show());
show();
