// Which view is shown, and what the server tells it.

const main = byId('main');
let page = null, source = null, asking = null, again = false;

// One refresh at a time; what comes meanwhile is one more.
async function refresh() {
  if (asking) { again = true; return; }
  asking = page;
  try {
    await asking.runs?.();
    byId('link').textContent = '';
  } catch (error) {
    byId('link').textContent = error.message;
  } finally {
    asking = null;
    if (again) { again = false; setTimeout(refresh, 500); }
  }
}

function listen() {
  source?.close();
  source = new EventSource(`api/events${page.events}`);
  source.addEventListener('runs', (event) => { if (Number(event.data) !== page.version?.()) refresh(); });
  source.addEventListener('queue', (event) => page.queue?.(JSON.parse(event.data)));
  source.addEventListener('live', (event) => page.live?.(JSON.parse(event.data)));
  source.addEventListener('open', () => { byId('link').textContent = ''; });
  source.addEventListener('error', () => { byId('link').textContent = 'The board does not answer; is it still running?'; });
}

function show() {
  page?.close?.();
  main.replaceChildren();
  byId('about').textContent = '';
  const [view, rest] = location.hash.replace(/^#\//, '').split('/');
  page = view === 'run' && rest ? runPage(main, decodeURIComponent(rest))
    : view === 'compare' && rest ? comparePage(main, rest.split(',').map(decodeURIComponent))
      : view === 'queue' ? queuePage(main) : runsPage(main);
  for (const link of document.querySelectorAll('header nav a')) {
    if (link.hash === (view === 'queue' ? '#/queue' : '#/runs')) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  document.title = view === 'run' ? `${decodeURIComponent(rest)} - dtrain board` : 'dtrain board';
  listen();
  refresh();
}

byId('theme').addEventListener('click', () => {
  setTheme(themes[(themes.indexOf(byId('theme').dataset.theme || 'auto') + 1) % themes.length]);
});
const stored = (() => { try { return localStorage.getItem('dtrain-theme'); } catch { return null; } })();
if (themes.includes(stored) && stored !== 'auto') setTheme(stored);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => setTheme(byId('theme').dataset.theme || 'auto'));
addEventListener('hashchange', () => { show(); scrollTo(0, 0); main.focus({preventScroll: true}); });
show();
