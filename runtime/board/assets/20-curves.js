// Learning curves of one run or several: a chart for each metric.

const curveView = {over: 'batches', smoothing: 0, log: false};

function curveTools(change) {
  const over = make('select', {}, make('option', {value: 'batches', textContent: 'batches'}), make('option', {value: 'seconds', textContent: 'time'}));
  over.value = curveView.over;
  over.addEventListener('change', () => { curveView.over = over.value; change(); });
  const smoothing = make('input', {type: 'range', min: 0, max: 0.99, step: 0.01, value: curveView.smoothing});
  smoothing.addEventListener('input', () => { curveView.smoothing = Number(smoothing.value); change(); });
  const log = make('input', {type: 'checkbox', checked: curveView.log});
  log.addEventListener('change', () => { curveView.log = log.checked; change(); });
  return [make('label', {}, 'Over', over), make('label', {}, 'Smoothing', smoothing), make('label', {}, log, 'Log scale')];
}

const curveTitles = {training: '', validation: 'validation ', learning_rate: '', gradient_norm: '', throughput: ''};

class CurveCharts {
  // `place`: where they are drawn.
  constructor(place) {
    this.place = place;
    this.charts = new Map();  // by the curve's key
    this.runs = [];
    this.repaint = () => { for (const known of this.charts.values()) this.paint(known); };
    repainters.add(this.repaint);
  }

  close() {
    repainters.delete(this.repaint);
    for (const known of this.charts.values()) known.chart.destroy();
    this.charts.clear();
  }

  // `runs`: [{name, color, curves, restarts}].
  show(runs) {
    this.runs = runs;
    const wanted = new Map();
    runs.forEach((run, number) => {
      for (const curve of run.curves) {
        const key = `${curve.kind}/${curve.name}`;
        if (!wanted.has(key)) wanted.set(key, {kind: curve.kind, name: curve.name, sets: []});
        wanted.get(key).sets.push({run, number, curve});
      }
    });
    for (const [key, known] of this.charts) {
      if (wanted.has(key)) continue;
      known.chart.destroy();
      known.element.remove();
      this.charts.delete(key);
    }
    for (const [key, data] of wanted) {
      if (!this.charts.has(key)) this.charts.set(key, this.make(data));
      Object.assign(this.charts.get(key), data);
      this.paint(this.charts.get(key));
    }
    if (!wanted.size) this.place.replaceChildren(make('p', {className: 'note', textContent: 'No metric has been written yet.'}));
    else this.place.querySelector('.note')?.remove();
  }

  make(data) {
    const canvas = make('canvas', {role: 'img'});
    const about = make('p');
    const title = (curveTitles[data.kind] ?? '') + data.name;
    const element = make('div', {className: 'chart'}, make('h3', {textContent: title}), about, make('div', {className: 'area'}, canvas));
    canvas.setAttribute('aria-label', title);
    this.place.append(element);
    const chart = new Chart(canvas, {type: 'line', data: {datasets: []}, options: {
      animation: false, responsive: true, maintainAspectRatio: false, normalized: true, parsing: false,
      interaction: {mode: 'nearest', axis: 'x', intersect: false},
      plugins: {legend: {display: false}, tooltip: {filter: (item) => !item.dataset.band, callbacks: {
        title: (items) => items.length ? this.placeText(items[0].parsed.x) : '',
        label: (item) => `${item.dataset.label}: ${digits(item.parsed.y)}`,
      }}},
      scales: {x: {type: 'linear', ticks: {maxTicksLimit: 7}}, y: {ticks: {maxTicksLimit: 6}}},
    }});
    return {chart, element, about};
  }

  placeText(x) {
    return curveView.over === 'batches' ? `batch ${x.toLocaleString('en-US')}` : withUnit(x, 's');
  }

  paint({chart, about, sets}) {
    const datasets = [];
    let least = Infinity;
    for (const {run, number, curve} of sets) {
      const line = color(run.color ?? several[number % several.length]);
      const dash = dashes[Math.floor(number / several.length) % dashes.length];
      const x = curve[curveView.over];
      const points = (values) => values.map((y, i) => ({x: x[i], y}));
      const common = {label: run.name, borderColor: line, backgroundColor: line, borderDash: dash, spanGaps: false, pointHitRadius: 6};
      for (const value of curve.low || curve.mean) if (value !== null) least = Math.min(least, value);
      if (curve.low && sets.length === 1) {
        const band = {...common, band: true, pointRadius: 0, borderWidth: 0, backgroundColor: transparent(line, 0.2)};
        datasets.push({...band, data: points(curve.low), fill: false}, {...band, data: points(curve.high), fill: '-1'});
      }
      const smooth = curveView.smoothing > 0 && curve.mean.length > 2;
      datasets.push({...common, data: points(curve.mean), borderWidth: smooth ? 1 : 1.6, borderColor: smooth ? transparent(line, 0.35) : line,
        band: smooth, pointRadius: curve.mean.length < 40 && !smooth ? 2.5 : 0});
      if (smooth) datasets.push({...common, data: points(smoothed(curve.mean, curveView.smoothing)), borderWidth: 2, pointRadius: 0, spanGaps: true});
    }
    const soft = color('soft'), grid = {color: color('grid')};
    chart.options.scales.x.title = {display: true, text: curveView.over === 'batches' ? 'batches' : 'time of training', color: soft};
    chart.options.scales.x.ticks.callback = (value) => curveView.over === 'batches' ? value.toLocaleString('en-US') : withUnit(value, 's');
    chart.options.scales.y.type = curveView.log && least > 0 ? 'logarithmic' : 'linear';
    for (const axis of [chart.options.scales.x, chart.options.scales.y]) {
      axis.ticks.color = soft;
      axis.grid = grid;
    }
    chart.data.datasets = datasets;
    chart.update('none');
    const [{curve}] = sets;
    const last = curve.last.at(-1);
    const bad = sets.reduce((sum, set) => sum + set.curve.non_finite, 0);
    about.textContent = (sets.length === 1 ? `${digits(last)} at batch ${curve.batches.at(-1).toLocaleString('en-US')}` : `${sets.length} runs`) +
      (bad ? `; ${bad} values are nan or infinite` : '');
  }
}
