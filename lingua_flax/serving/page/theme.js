/**
 * Sets the theme before anything is drawn. It is a classic script because modules wait for the whole page.
 */

{
  const theme = localStorage.getItem("theme") ?? "system";
  const isDark = theme === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}
