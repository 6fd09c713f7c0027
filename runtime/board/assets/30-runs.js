// The table of all runs, and several runs side by side.

const runsView = {sort: 'started', down: true, search: '', state: '', grouped: false, chosen: new Set()};

const bestOf = (run) => run.best_metric?.value;
const lastOf = (run) => run.last_metric?.value ?? run.loss?.value;
const stateOf = (run) => run.now?.state || run.state;

// `narrow`: also shown on a narrow page. `live`: only while a run trains.
const runColumns = [
  {key: 'id', narrow: true, title: 'run', value: (run) => run.number ?? run.id, cell: (run) => make('a', {href: hrefOf(run.id), textContent: run.number ?? run.id})},
  {key: 'name', narrow: true, wide: true, title: 'name', value: (run) => run.name || '', cell: (run) => run.name || '-'},
  {key: 'state', narrow: true, title: 'state', value: (run) => stateOf(run) || '', cell: stateCell},
  {key: 'progress', live: true, title: 'progress', value: (run) => run.now?.left_s ?? null, cell: progressCell},
  {key: 'batches', title: 'batches', number: true, value: (run) => run.batches, cell: (run) => withUnit(run.batches)},
  {key: 'best', narrow: true, title: 'best', number: true, value: bestOf, cell: bestCell},
  {key: 'last', title: 'last', number: true, value: lastOf, cell: (run) => digits(lastOf(run))},
  {key: 'spark', title: 'course', cell: (run) => spark(run.spark || [])},
  {key: 'speed', title: 'samples/s', number: true, value: (run) => run.now?.samples_per_s || run.samples_per_s, cell: (run) => withUnit(run.now?.samples_per_s || run.samples_per_s)},
  {key: 'duration', title: 'duration', number: true, value: (run) => run.duration_s, cell: (run) => withUnit(run.duration_s, 's')},
  {key: 'started', title: 'started', value: (run) => run.started_s, cell: (run) => when(run.started_s)},
  {key: 'differs', wide: true, title: 'what differs', value: (run) => run.differs, cell: differsCell},
];

const classOf = (column) => [column.number && 'number', column.wide && 'words', column.live && 'live', !column.narrow && 'roomy'].filter(Boolean).join(' ');

function differsCell(run) {
  const text = run.damage || run.differs || '-', most = 60;
  const shown = text.length > most ? `${text.slice(0, most)}…` : text;
  return make('span', {className: 'parts', title: shown === text ? '' : text}, ...shown.split(' ').flatMap((part) => [make('span', {textContent: part}), ' ']));
}

const leftOf = (run) => run.now && run.now.left_s !== null ? `${withUnit(run.now.left_s, 's')} left` : '';

function progressCell(run) {
  if (!run.now?.total_batches) return run.now ? withUnit(run.now.batch) : '';
  return make('span', {}, progressBar(run.now.batch, run.now.total_batches), make('span', {className: 'below', textContent: leftOf(run)}));
}

// A narrow page has no column for the progress.
function stateCell(run) {
  return make('span', {}, stateBadge(stateOf(run)), make('span', {className: 'below slim', textContent: leftOf(run)}));
}

function bestCell(run) {
  return make('span', {}, digits(bestOf(run)), make('span', {className: 'below', textContent: run.metric || ''}));
}

// Adds to each run the settings in which it differs from others, by the last part of the key where that is enough.
function noteDifferences(list) {
  const count = {};
  const lastPart = (key) => key.slice(key.lastIndexOf('.') + 1);
  for (const {key} of list.differs) count[lastPart(key)] = (count[lastPart(key)] || 0) + 1;
  list.runs.forEach((run, i) => {
    run.differs = list.differs.filter(({values}) => values[i] !== '-')
      .map(({key, values}) => `${count[lastPart(key)] > 1 ? key : lastPart(key)}=${values[i]}`).join(' ');
  });
}

function compareRuns(column, down) {
  return (a, b) => {
    const x = column.value(a), y = column.value(b);
    const missing = (value) => value === null || value === undefined || value === '';
    if (missing(x) || missing(y)) return missing(x) - missing(y);
    const order = typeof x === 'string' || typeof y === 'string' ? String(x).localeCompare(String(y), 'en', {numeric: true}) : x - y;
    return down ? -order : order;
  };
}

function runsPage(main) {
  const search = make('input', {type: 'search', className: 'grow', placeholder: 'Search names, states and settings', value: runsView.search});
  search.setAttribute('aria-label', 'Search runs');
  const state = make('select');
  state.setAttribute('aria-label', 'State');
  const grouped = make('input', {type: 'checkbox', checked: runsView.grouped});
  const compare = make('button', {type: 'button'});
  const head = make('tr'), body = make('tbody');
  const note = make('p', {className: 'note'});
  let list = {runs: [], differs: []};

  for (const column of [{key: 'choice', title: ''}, ...runColumns]) {
    const cell = make('th', {scope: 'col', className: column.title ? classOf(column) : ''});
    if (column.value) {
      const button = make('button', {type: 'button', textContent: column.title});
      button.addEventListener('click', () => {
        runsView.down = runsView.sort === column.key ? !runsView.down : !!column.number;
        runsView.sort = column.key;
        draw();
      });
      cell.append(button);
      cell.dataset.key = column.key;
    } else {
      cell.textContent = column.title;
      if (!column.title) cell.setAttribute('aria-label', 'to compare');
    }
    head.append(cell);
  }

  function rowOf(run) {
    const box = make('input', {type: 'checkbox', checked: runsView.chosen.has(run.id)});
    box.setAttribute('aria-label', `Compare run ${run.id}`);
    const row = make('tr', {}, make('td', {}, box), ...runColumns.map((column) => make('td', {className: classOf(column)}, column.cell(run) ?? '-')));
    row.classList.toggle('chosen', box.checked);
    box.addEventListener('change', () => {
      if (box.checked) runsView.chosen.add(run.id); else runsView.chosen.delete(run.id);
      row.classList.toggle('chosen', box.checked);
      drawCompare();
    });
    return row;
  }

  function drawCompare() {
    compare.textContent = `Compare ${runsView.chosen.size || ''} runs`;
    compare.disabled = runsView.chosen.size < 2;
  }

  function draw() {
    const words = runsView.search.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = list.runs.filter((run) => {
      const text = `${run.id} ${run.name} ${stateOf(run)} ${run.differs} ${run.folder}`.toLowerCase();
      return words.every((word) => text.includes(word)) && (!runsView.state || stateOf(run) === runsView.state);
    });
    const column = runColumns.find(({key}) => key === runsView.sort);
    // By the best value the best runs come first.
    const judged = ['best', 'last'].includes(column.key) && shown.some((run) => run.smaller_is_better === false);
    shown.sort(compareRuns(column, judged ? !runsView.down : runsView.down));
    for (const cell of head.children) {
      if (cell.dataset.key === runsView.sort) cell.setAttribute('aria-sort', runsView.down ? 'descending' : 'ascending');
      else cell.removeAttribute('aria-sort');
    }
    const focus = document.activeElement?.closest?.('tr')?.querySelector('a')?.hash;
    const rows = [];
    if (runsView.grouped) {
      for (const [name, runs] of Map.groupBy ? Map.groupBy(shown, (run) => run.name || '-') : groups(shown)) {
        rows.push(make('tr', {className: 'group'}, make('td', {colSpan: runColumns.length + 1, textContent: `${name}: ${runs.length}`})), ...runs.map(rowOf));
      }
    } else rows.push(...shown.map(rowOf));
    body.replaceChildren(...rows);
    table.classList.toggle('idle', !list.runs.some((run) => run.now));
    if (focus) [...body.querySelectorAll('a')].find((link) => link.hash === focus)?.closest('tr').querySelector('input').focus();
    const states = [...new Set(list.runs.map(stateOf).filter(Boolean))].sort();
    state.replaceChildren(make('option', {value: '', textContent: 'all states'}), ...states.map((name) => make('option', {value: name, textContent: name})));
    state.value = runsView.state;
    note.textContent = list.reading ? `Reading run ${list.reading.done + 1} of ${list.reading.total} …`
      : !list.runs.length ? `There is no run in ${(list.folders || []).join(', ')} yet: \`dtrain launch\` makes one.`
        : shown.length < list.runs.length ? `${shown.length} of ${list.runs.length} runs` : '';
    drawCompare();
  }

  function groups(runs) {
    const result = new Map();
    for (const run of runs) result.set(run.name || '-', [...(result.get(run.name || '-') || []), run]);
    return result;
  }

  search.addEventListener('input', () => { runsView.search = search.value; draw(); });
  state.addEventListener('change', () => { runsView.state = state.value; draw(); });
  grouped.addEventListener('change', () => { runsView.grouped = grouped.checked; draw(); });
  compare.addEventListener('click', () => { location.hash = `#/compare/${[...runsView.chosen].map(encodeURIComponent).join(',')}`; });

  const table = make('table', {className: 'runs'}, make('thead', {}, head), body);
  const section = make('section', {}, make('div', {className: 'tools'}, make('h2', {textContent: 'Runs'}), search, state,
    make('label', {}, grouped, 'Group by experiment'), compare),
    scrolling(table, 'Runs'), note);
  main.append(section);
  return {
    events: '',
    version: () => list.version,
    async runs() {
      list = await ask('runs');
      noteDifferences(list);
      byId('about').textContent = `${list.host}: ${list.folders.join(', ')}`;
      const known = new Set(list.runs.map((run) => run.id));
      for (const id of runsView.chosen) if (!known.has(id)) runsView.chosen.delete(id);
      draw();
    },
  };
}

function comparePage(main, ids) {
  const curves = part('Curves', ...curveTools(() => charts.show(shown)));
  const place = make('div', {className: 'charts'});
  const keys = make('ul', {className: 'keys'});
  curves.body.append(keys, place);
  const charts = new CurveCharts(place);
  const settings = part('Settings that differ');
  main.append(make('section', {}, make('h2', {textContent: `${ids.length} runs side by side`})), curves.section, settings.section);
  let shown = [];
  return {
    events: '',
    async runs() {
      const list = await ask('runs');
      const runs = ids.map((id) => list.runs.find((run) => run.id === id)).filter(Boolean);
      const [all] = await Promise.all([Promise.all(runs.map((run) => ask(`run/${encodeURIComponent(run.id)}/curves`))), loadCharts()]);
      shown = runs.map((run, i) => ({name: `${run.number ?? run.id} ${run.name || ''}`, curves: all[i].curves, restarts: all[i].restarts}));
      charts.show(shown);
      keys.replaceChildren(...shown.map((run, i) => {
        const key = make('i');
        key.style.background = color(several[i % several.length]);
        return make('li', {}, key, run.name);
      }));
      const rows = list.differs.map(({key, values}) => ({key, values: runs.map((run) => values[list.runs.indexOf(run)])}))
        .filter(({values}) => new Set(values).size > 1);
      const results = [['best', bestOf], ['last', lastOf], ['samples/s', (run) => run.samples_per_s], ['batches', (run) => run.batches]]
        .map(([key, value]) => ({key, values: runs.map((run) => digits(value(run)))}));
      settings.body.replaceChildren(tableOf([{title: 'key', cell: (row) => row.key},
        ...runs.map((run, i) => ({title: `${run.number ?? run.id}`, cell: (row) => row.values[i]}))], [...results, ...rows]),
      make('p', {className: 'note', textContent: `Whether a difference in speed is more than noise: dtrain diff ${runs.slice(0, 2).map((run) => run.folder).join(' ')}`}));
    },
    close: () => charts.close(),
  };
}
