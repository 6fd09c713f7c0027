// The page as a whole: draws the figures, and offers the theme, the rank, and where one is.

document.documentElement.classList.add('script');
const charts = JSON.parse(byId('charts').textContent);
const figures = [];
for (const [id, spec] of Object.entries(charts)) figures.push(new Figure(byId(id), spec));
for (const table of document.querySelectorAll('main table')) prepareTable(table);

function repaint() {
  style = getComputedStyle(document.documentElement);
  for (const figure of figures) {
    figure.draw();
    figure.paintKeys();
  }
}

// Automatic, light, dark.
const stored = (() => { try { return localStorage.getItem('dtrain-theme'); } catch { return null; } })();
const themes = ['auto', 'light', 'dark'];
const themeButton = byId('theme');
function setTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  themeButton.dataset.theme = theme;
  themeButton.textContent = `Theme: ${theme}`;
  try { localStorage.setItem('dtrain-theme', theme); } catch { /* nothing is remembered */ }
  repaint();
}
themeButton.addEventListener('click', () => {
  setTheme(themes[(themes.indexOf(themeButton.dataset.theme || 'auto') + 1) % themes.length]);
});
if (themes.includes(stored) && stored !== 'auto') setTheme(stored);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);

// On paper charts have the colours of the light theme.
let before = null;
addEventListener('beforeprint', () => {
  before = document.documentElement.dataset.theme || '';
  document.documentElement.dataset.theme = 'light';
  repaint();
});
addEventListener('afterprint', () => {
  if (before) document.documentElement.dataset.theme = before;
  else delete document.documentElement.dataset.theme;
  repaint();
});

const rankChoice = byId('rank');
if (rankChoice) {
  rankChoice.addEventListener('change', () => {
    const rank = rankChoice.value === '' ? null : Number(rankChoice.value);
    for (const figure of figures) figure.chooseRank(rank);
    for (const row of document.querySelectorAll('tr[data-rank]')) row.classList.toggle('chosen', Number(row.dataset.rank) === rank);
    say(rank === null ? 'All ranks are shown' : `Only rank ${rank} is shown`);
  });
}

// In the list of sections, what is on the screen.
const links = new Map([...document.querySelectorAll('nav a')].map((link) => [link.hash.slice(1), link]));
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) links.get(entry.target.id)?.classList.toggle('here', entry.isIntersecting);
}, {rootMargin: '-15% 0px -55% 0px'});
for (const section of document.querySelectorAll('main > section')) watch.observe(section);
