// One run: what it does now, its curves, where its time goes, what to change, its attempts, checkpoints, logs and settings.

const activities = [['computing', 'compute'], ['exchange', 'validation'], ['waiting', 'wait'], ['loading', 'data'], ['optimizer', 'optimizer'], ['other', 'other']];

function sharesBar(shares) {
  const bar = make('div', {className: 'shares', role: 'img'});
  const words = [];
  for (const [name, colour] of activities) {
    const share = shares?.[name] ?? 0;
    if (share <= 0) continue;
    const piece = make('i', {title: `${name} ${withUnit(share, 'share')}`});
    piece.style.width = `${100 * share}%`;
    piece.style.background = color(colour);
    bar.append(piece);
    words.push(`${name} ${withUnit(share, 'share')}`);
  }
  bar.setAttribute('aria-label', words.join(', '));
  return bar;
}

function keysOfActivities() {
  return make('ul', {className: 'keys'}, ...activities.map(([name, colour]) => {
    const key = make('i');
    key.style.background = color(colour);
    return make('li', {}, key, name);
  }));
}

const percent = (value) => value === null || value === undefined ? '-' : `${Math.round(value)}%`;

function drawNow(place, view) {
  if (view.error) return place.replaceChildren(make('p', {className: 'error', textContent: view.error}));
  const ranks = tableOf([
    {title: 'rank', number: true, cell: (rank) => String(rank.rank)},
    {title: 'host', cell: (rank) => rank.host || '-'},
    {title: 'batch', number: true, cell: (rank) => withUnit(rank.batch)},
    {title: 'where its time goes (last seconds)', cell: (rank) => rank.recent ? sharesBar(rank.recent.shares) : rank.ended || 'no batch yet'},
    {title: 'batch time', number: true, cell: (rank) => withUnit(rank.recent?.step_p50_s, 's')},
    {title: 'samples/s', number: true, cell: (rank) => withUnit(rank.recent?.samples_per_s)},
    {title: 'came last', number: true, cell: (rank) => withUnit(rank.recent?.came_last)},
    {title: 'memory', number: true, cell: (rank) => withUnit(rank.resident_bytes, 'bytes')},
    {title: 'CPU', number: true, cell: (rank) => percent(rank.cpu_percent)},
  ], view.ranks);
  const hosts = tableOf([
    {title: 'host', cell: (host) => host.host || host.agent},
    {title: 'CPU', number: true, cell: (host) => percent(host.cpu_percent)},
    {title: 'io wait', number: true, cell: (host) => percent(host.io_wait_percent)},
    {title: 'free memory', number: true, cell: (host) => withUnit(host.free_bytes, 'bytes')},
    {title: 'network in', number: true, cell: (host) => withUnit(host.net_received_bytes_per_s, 'bytes/s')},
    {title: 'network out', number: true, cell: (host) => withUnit(host.net_sent_bytes_per_s, 'bytes/s')},
    {title: 'disk read', number: true, cell: (host) => withUnit(host.disk_read_bytes_per_s, 'bytes/s')},
    {title: 'disk written', number: true, cell: (host) => withUnit(host.disk_written_bytes_per_s, 'bytes/s')},
    {title: 'GPUs', cell: (host) => host.gpus?.length ? host.gpus.map((gpu) => `${gpu.index}: ${percent(gpu.util_percent)}`).join(' ') : '-'},
  ], view.hosts);
  redraw(place, keysOfActivities(), ranks, hosts, ...view.notes.map((note) => make('p', {className: 'note', textContent: note})));
}

function drawFindings(place, analysis, command, reference) {
  const parts = analysis.waterfall.parts.filter(({share}) => share > 0.0005);
  const most = Math.max(...parts.map(({seconds}) => seconds), 1e-9);
  const waterfall = tableOf([
    {title: 'from ideal to measured', cell: ({name}) => name.replaceAll('_', ' ')},
    {title: 'seconds', number: true, cell: ({seconds}) => withUnit(seconds, 's')},
    {title: 'share', number: true, cell: ({share}) => withUnit(share, 'share')},
    {title: '', cell: ({seconds}) => progressBar(seconds, most)},
    {title: 'what it is', wide: true, cell: ({description}) => description},
  ], parts);
  const findings = analysis.findings.map((finding) => make('div', {className: 'finding'},
    make('h4', {textContent: `${withUnit(finding.seconds, 's')} (${withUnit(finding.share, 'share')} of the loop): ${finding.title}`}),
    make('p', {textContent: finding.advice}), make('p', {className: 'evidence', textContent: finding.evidence}),
    ...(finding.patch || []).map((patch) => copyLine(`${command} launch --continue ${reference} --set ${patch}`))));
  if (!findings.length) findings.push(make('p', {className: 'note', textContent: 'Nothing costs enough to be worth a finding.'}));
  redraw(place, ...findings, waterfall);
}

function drawHistory(place, about) {
  const attempts = tableOf([
    {title: 'attempt', number: true, cell: (attempt) => String(attempt.attempt)},
    {title: 'began', cell: (attempt) => when(attempt.started_s)},
    {title: 'ended', cell: (attempt) => when(attempt.ended_s)},
    {title: 'from batch', number: true, cell: (attempt) => withUnit(attempt.from_batch)},
    {title: 'to batch', number: true, cell: (attempt) => withUnit(attempt.to_batch)},
    {title: 'its end', wide: true, cell: (attempt) => attempt.text || 'it goes on'},
  ], about.attempts);
  const saved = about.checkpoints.slice(-20).reverse();
  const checkpoints = saved.length ? tableOf([
    {title: 'checkpoint of batch', number: true, cell: (checkpoint) => withUnit(checkpoint.step)},
    {title: 'reason', cell: (checkpoint) => checkpoint.reason},
    {title: 'saved', cell: (checkpoint) => when(checkpoint.time_s)},
    {title: 'size', number: true, cell: (checkpoint) => withUnit(checkpoint.bytes, 'bytes')},
    {title: 'copied in', number: true, cell: (checkpoint) => withUnit(checkpoint.copy_s, 's')},
    {title: 'metric', number: true, cell: (checkpoint) => digits(checkpoint.metric_value)},
    {title: 'is', cell: (checkpoint) => checkpoint.fate},
    {title: 'path', wide: true, cell: (checkpoint) => checkpoint.path},
  ], saved) : make('p', {className: 'note', textContent: 'No checkpoint was saved.'});
  redraw(place, attempts, checkpoints, ...about.troubles.map((trouble) => make('p', {className: 'error', textContent: trouble})));
}

function drawSettings(place, settings) {
  const search = make('input', {type: 'search', placeholder: 'Search keys and values'});
  search.setAttribute('aria-label', 'Search settings');
  const table = make('div');
  const draw = () => {
    const rows = Object.entries(settings).filter(([key, value]) => `${key} ${value}`.toLowerCase().includes(search.value.toLowerCase()));
    table.replaceChildren(tableOf([{title: 'key', cell: ([key]) => key}, {title: 'value', wide: true, cell: ([, value]) => value}], rows));
  };
  search.addEventListener('input', draw);
  place.replaceChildren(make('div', {className: 'tools'}, search), table);
  draw();
}

function runPage(main, id) {
  const path = `run/${encodeURIComponent(id)}`;
  const top = make('section');
  const now = part('Now');
  const place = make('div', {className: 'charts'});
  let known = {curves: [], restarts: []}, about = null, analysed = 0, ended = false;
  const curves = part('Curves', ...curveTools(() => charts.show([{name: id, ...known}])));
  curves.body.append(place);
  const charts = new CurveCharts(place);
  const why = part('Where the time goes, and what to change');
  const history = part('Attempts and checkpoints');
  const logged = loggedPart(path);
  const logs = logPart(path, () => about);
  const again = launchPart(path);
  const settings = make('div');
  main.append(top, now.section, curves.section, logged.section, why.section, history.section, logs.section, again.section,
    make('section', {}, make('details', {}, make('summary', {textContent: 'Settings'}), settings)));

  function drawTop(view) {
    const line = about?.line || {};
    const state = view?.state || line.state;
    const links = [];
    if (about?.report) links.push(make('a', {href: `api/${path}/report.html`, target: '_blank', rel: 'noopener', textContent: 'Report'}));
    const progress = view?.total_batches ? make('span', {}, progressBar(view.batch, view.total_batches), ` ${withUnit(view.batch)} of ${withUnit(view.total_batches)}`) : withUnit(view?.batch ?? line.batches);
    top.replaceChildren(make('div', {className: 'title'}, make('h2', {textContent: line.name && !id.endsWith(line.name) ? `${id}: ${line.name}` : id}), stateBadge(state), ...links),
      ...(view?.cause ? [make('p', {className: state === 'failed' ? 'error' : 'note', textContent: view.cause})] : []),
      factsOf([['batches', progress], ['time left', view?.ended ? null : view?.left_s === null || view?.left_s === undefined ? null : withUnit(view.left_s, 's')],
        ['samples/s', withUnit(view?.ended ? line.samples_per_s : view?.samples_per_s || line.samples_per_s)],
        ['MFU', view?.mfu ? withUnit(view.mfu, 'share') : null],
        [`best ${line.metric || ''}`, line.best_metric ? digits(line.best_metric.value) : null],
        ['last loss', line.loss ? digits(line.loss.value) : null], ['ranks', view?.world_size ? String(view.world_size) : null],
        ['started', when(line.started_s)], ['ran for', withUnit(view?.elapsed_s ?? line.duration_s, 's')]]),
      ...(about ? [copyLine(`${about.command} top ${about.reference}`)] : []),
      ...(about?.damage ? [make('p', {className: 'error', textContent: about.damage})] : []));
  }

  async function analyse() {
    if (Date.now() - analysed < (ended ? 1000 : 15000)) return;
    analysed = Date.now();
    if (!why.body.childElementCount) why.body.append(make('p', {className: 'note', textContent: 'The records are being read …'}));
    try {
      const analysis = await ask(`${path}/analysis`);
      if (analysis.error) why.body.replaceChildren(make('p', {className: 'note', textContent: analysis.error}));
      else drawFindings(why.body, analysis, about.command, about.reference);
    } catch (error) {
      why.body.replaceChildren(make('p', {className: 'note', textContent: error.message}));
    }
  }

  let view = null;
  return {
    events: `?run=${encodeURIComponent(id)}`,
    async runs() {
      [about, known] = await Promise.all([ask(path), ask(`${path}/curves`), loadCharts()]);
      byId('about').textContent = about.line.folder;
      drawTop(view);
      charts.show([{name: id, ...known}]);
      drawHistory(history.body, about);
      if (!settings.childElementCount) drawSettings(settings, about.settings);
      logs.refresh();
      again.refresh(about.control, ended);
      await logged.refresh();
      analyse();
    },
    live(next) {
      view = next;
      ended = !!view.ended;
      now.head.firstChild.textContent = ended ? 'In its last seconds' : 'Now';
      drawTop(view);
      drawNow(now.body, view);
      logs.refresh();
      again.refresh(about?.control, ended);
    },
    close() {
      charts.close();
      logs.close();
    },
  };
}
