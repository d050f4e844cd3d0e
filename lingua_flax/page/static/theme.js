/** Sets the theme before anything is drawn. It is a classic script because modules wait for the whole page. */

document.documentElement.dataset.theme = localStorage.getItem("theme") ?? "system";
