// What all views of the board share: asking the server, small parts of the page, and the theme. 10-values.js of the report
// comes before it: byId(), make(), withUnit(), color(), say().

async function ask(path, options) {
  const answer = await fetch(`api/${path}`, options);
  const value = await answer.json().catch(() => ({error: `the board answers ${answer.status}`}));
  if (!answer.ok) throw new Error([value.error || `the board answers ${answer.status}`, value.remedy].filter(Boolean).join(': '));
  return value;
}

const svg = (tag, attributes) => {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};

const stateBadge = (state) => make('span', {className: `state ${state || ''}`, textContent: state || 'unknown'});
const hrefOf = (id) => `#/run/${encodeURIComponent(id)}`;
const dates = new Intl.DateTimeFormat([], {month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', hourCycle: 'h23'});
const when = (seconds) => seconds ? dates.format(seconds * 1000) : '-';

// Chart.js is loaded once a view has charts: the list of runs has none.
let charting = null;
function loadCharts() {
  charting ??= new Promise((done, fail) => {
    document.head.append(make('script', {src: 'chart.js', onload: done, onerror: () => fail(new Error('chart.js cannot be loaded'))}));
  });
  return charting;
}

// Numbers of metrics: as many digits as tell values apart.
function digits(value) {
  if (value === null || value === undefined) return '-';
  if (typeof value === 'string') return value;  // nan, inf
  const rounded = Number(value.toPrecision(5));
  return rounded !== 0 && Math.abs(rounded) < 1e-4 ? rounded.toExponential() : String(rounded);
}

function spark(values) {
  const picture = svg('svg', {class: 'spark', viewBox: '0 0 110 24', 'aria-hidden': 'true'});
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return picture;
  const least = Math.min(...known), span = Math.max(...known) - least || 1;
  let line = '';
  values.forEach((value, i) => {
    if (value === null) return;
    const x = 2 + 106 * i / (values.length - 1), y = 21 - 18 * (value - least) / span;
    line += `${line ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  picture.append(svg('path', {d: line}));
  return picture;
}

function progressBar(done, total) {
  const share = Math.min(1, done / total);
  const bar = make('span', {className: 'progress', role: 'progressbar', title: `${Math.floor(100 * share)}%`}, make('span'));
  bar.setAttribute('aria-valuenow', Math.floor(100 * share));
  bar.setAttribute('aria-label', 'progress');
  bar.firstChild.style.width = `${100 * share}%`;
  return bar;
}

// A section with a heading, whose body is filled later.
function part(title, ...tools) {
  const body = make('div');
  const head = make('div', {className: 'tools'}, make('h3', {textContent: title}), ...tools);
  const section = make('section', {}, head, body);
  section.setAttribute('aria-label', title);
  return {section, body, head};
}

function factsOf(pairs) {
  return make('dl', {className: 'facts'}, ...pairs.filter(([, value]) => value !== null && value !== undefined)
    .map(([name, value]) => make('div', {}, make('dt', {textContent: name}), make('dd', {}, value))));
}

// Columns: {name, title, number, wide, cell(row)}; a cell is a text or an element.
function tableOf(columns, rows) {
  const head = make('tr', {}, ...columns.map((column) => {
    const cell = make('th', {scope: 'col', textContent: column.title, className: column.number ? 'number' : ''});
    return cell;
  }));
  const body = make('tbody');
  for (const row of rows) {
    body.append(make('tr', {}, ...columns.map((column) => {
      const value = column.cell(row);
      return make('td', {className: [column.number && 'number', column.wide && 'wide'].filter(Boolean).join(' ')}, value ?? '-');
    })));
  }
  return scrolling(make('table', {}, make('thead', {}, head), body), `Table by ${columns.find(({title}) => title)?.title}`);
}

// A table that is wider than its place is scrolled in there, by keyboard too.
function scrolling(table, name) {
  const place = make('div', {className: 'scroll'}, table);
  place.setAttribute('role', 'group');
  place.setAttribute('aria-label', name);
  new ResizeObserver(() => {
    if (place.scrollWidth > place.clientWidth) place.tabIndex = 0;
    else place.removeAttribute('tabindex');
  }).observe(table);
  return place;
}

// Puts new contents in the place of old ones; tables stay scrolled and focused as they were.
function redraw(place, ...children) {
  const before = [...place.querySelectorAll('.scroll')];
  const lefts = before.map(({scrollLeft}) => scrollLeft), focus = before.indexOf(document.activeElement);
  place.replaceChildren(...children);
  place.querySelectorAll('.scroll').forEach((table, i) => {
    if (lefts[i]) table.scrollLeft = lefts[i];
    if (i === focus) { table.tabIndex = 0; table.focus({preventScroll: true}); }
  });
}

function copyLine(text) {
  const button = make('button', {type: 'button', textContent: 'Copy'});
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(text).then(() => say('Copied'), () => say('The browser does not allow it'));
  });
  return make('div', {className: 'copy'}, make('code', {textContent: text}), button);
}

// Automatic, light, dark.
const themes = ['auto', 'light', 'dark'];
const repainters = new Set();  // called when colours change
function setTheme(theme) {
  if (theme === 'auto') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId('theme').textContent = `Theme: ${theme}`;
  byId('theme').dataset.theme = theme;
  try { localStorage.setItem('dtrain-theme', theme); } catch { /* nothing is remembered */ }
  style = getComputedStyle(document.documentElement);
  for (const repaint of repainters) repaint();
}
