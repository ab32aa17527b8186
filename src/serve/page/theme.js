// Dark or light: the system's choice until the user makes another.
const root = document.documentElement, saved = localStorage.getItem("quern.theme");
if (saved) root.dataset.theme = saved;

export function themeButton(button) {
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("quern.theme", root.dataset.theme);
  });
}
