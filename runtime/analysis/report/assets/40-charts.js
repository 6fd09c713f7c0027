// A chart of Chart.js from a spec of the page: {"kind", "x", "y", "sets", ...}. Axes are {"title", "unit", "log"}; a set is
// {"name", "color", "rank", ...} with its values:
//   series     "y" over "x", or over "x0" + i * "dx"; "low" and "high" fill a band; "smooth" is drawn in front of a fainter
//              "y"; all on one clock. "marks" of the spec: places on the x axis; "bad" of a set: points that have no value;
//              "clipped" of the y axis: points with a "high" beyond its "max" are marked, or those in "beyond" of a set
//   histogram  "y" counts in bins of "x0" + i * "dx" (of the spec)
//   bars       "y" over the spec's "labels"; "stacked", "horizontal"; "low" where a bar does not begin at zero
//   shares     "y" over "labels": a ring
//   points     "x" and "y"

const xOf = (set, spec, i) => set.x ? set.x[i] : (set.x0 ?? spec.x0) + i * (set.dx ?? spec.dx);

function pointsOf(set, spec, values) {
  return values.map((y, i) => ({x: xOf(set, spec, i), y}));
}

function lineSets(spec) {
  const result = [];
  spec.sets.forEach((set, index) => {
    const line = colorOf(set, index);
    const common = {label: set.name, rank: set.rank, borderColor: line, set: index, normalized: true, borderDash: dashOf(set, index)};
    if (set.low) {
      const band = {...common, band: true, pointRadius: 0, pointHitRadius: 0, borderWidth: 0, backgroundColor: transparent(line, 0.22)};
      result.push({...band, data: pointsOf(set, spec, set.low), fill: false});
      result.push({...band, data: pointsOf(set, spec, set.high), fill: '-1'});
    }
    result.push({
      ...common, data: pointsOf(set, spec, set.y), backgroundColor: spec.stacked ? transparent(line, 0.6) : line,
      borderWidth: 1.6, pointRadius: set.y.length < 40 && !set.smooth ? 2.5 : 0, pointHitRadius: 6, fill: spec.stacked ? 'stack' : false,
      stepped: spec.stepped || false, spanGaps: false,
    });
    if (!set.smooth) return;
    Object.assign(result.at(-1), {borderColor: transparent(line, 0.35), borderWidth: 1});
    result.push({...common, band: true, data: pointsOf(set, spec, set.smooth), borderWidth: 2, pointRadius: 0, pointHitRadius: 0, backgroundColor: line, spanGaps: true});
  });
  return result;
}

function barSets(spec) {
  const histogram = spec.kind === 'histogram';
  return spec.sets.map((set, index) => {
    const back = set.colors ? set.colors.map((name) => color(name)) : colorOf(set, index);
    const overlaid = histogram && spec.sets.length > 1;
    const value = (y, i) => set.low ? [set.low[i], y] : y;
    return {
      label: set.name, rank: set.rank, set: index, data: histogram ? pointsOf({x0: spec.x0 + spec.dx / 2}, spec, set.y) : set.y.map(value),
      backgroundColor: overlaid ? transparent(back, 0.55) : back, borderColor: back, borderWidth: overlaid ? 1 : 0,
      barPercentage: histogram ? 1 : 0.85, categoryPercentage: histogram ? 1 : 0.8, grouped: !histogram,
      minBarLength: 1, maxBarThickness: histogram ? undefined : 34,
    };
  });
}

function pointSets(spec) {
  const shapes = ['circle', 'triangle', 'rect', 'rectRot', 'star', 'cross'];
  return spec.sets.map((set, index) => ({
    label: set.name, rank: set.rank, set: index, data: pointsOf(set, spec, set.y), borderColor: colorOf(set, index),
    backgroundColor: transparent(colorOf(set, index), 0.6), pointRadius: 3.5, pointStyle: shapes[index % shapes.length],
    showLine: false, labels: set.labels,
  }));
}

const families = {
  series: {type: 'line', sets: lineSets}, histogram: {type: 'bar', sets: barSets}, bars: {type: 'bar', sets: barSets},
  points: {type: 'scatter', sets: pointSets},
};

// At round numbers of KiB, MiB, ...
function binaryTicks(scale) {
  const rough = (scale.max - scale.min) / 5;
  if (!(rough > 0)) return;
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(rough) / 10));
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1024].find((size) => size * unit >= rough) * unit;
  scale.ticks = [];
  for (let value = Math.ceil(scale.min / step) * step; value <= scale.max; value += step) scale.ticks.push({value});
}

function axis(spec, description, extra) {
  return {
    type: description.log ? 'logarithmic' : 'linear',
    grid: {color: color('grid'), borderColor: color('line'), drawTicks: false, offset: false},
    title: {display: Boolean(description.title), text: description.title, color: color('soft')},
    afterBuildTicks: /^bytes/.test(description.unit) && !description.log ? binaryTicks : undefined,
    ticks: {color: color('soft'), maxRotation: 0, autoSkipPadding: 14, padding: 6, callback: (value) => withUnit(value, description.unit)},
    ...extra,
  };
}

function tooltipOf(spec) {
  const horizontal = spec.horizontal ? 'x' : 'y';
  return {
    backgroundColor: color('text'), titleColor: color('card'), bodyColor: color('card'), padding: 8, usePointStyle: true,
    filter: (item) => !item.dataset.band,
    callbacks: {
      title: (items) => {
        if (!items.length) return '';
        if (spec.labels) return spec.labels[items[0].dataIndex];
        const x = items[0].parsed.x;
        if (spec.curves) return `${spec.x.title} ${withUnit(x, spec.x.unit)}`;
        if (spec.kind !== 'histogram') return withUnit(x, spec.x.unit);
        return `${withUnit(x - spec.dx / 2, spec.x.unit)} to ${withUnit(x + spec.dx / 2, spec.x.unit)}`;
      },
      label: (item) => {
        const set = spec.sets[item.dataset.set];
        const i = item.dataIndex;
        let text = `${set.name}: ` + withUnit(set.low && spec.kind === 'bars' ? set.y[i] - set.low[i] : item.parsed[horizontal], spec.y.unit);
        if (set.low && spec.kind === 'series') text += ` (${withUnit(set.low[i], spec.y.unit)} to ${withUnit(set.high[i], spec.y.unit)})`;
        if (set.notes) text += ' ' + set.notes[i];
        if (set.smooth) text += `, smoothed ${withUnit(set.smooth[i], spec.y.unit)}`;
        if (spec.curves && item.parsed.x !== item.chart.tooltip.dataPoints[0].parsed.x) text += ` at ${withUnit(item.parsed.x, spec.x.unit)}`;
        return text;
      },
    },
  };
}

function ringConfig(spec) {
  const set = spec.sets[0];
  const total = set.y.reduce((sum, value) => sum + value, 0) || 1;
  return {
    type: 'doughnut',
    data: {labels: spec.labels, datasets: [{data: set.y, set: 0, backgroundColor: (set.colors || several).map((name) => color(name)), borderColor: color('card'), borderWidth: 2}]},
    options: {
      responsive: true, maintainAspectRatio: false, animation: false, cutout: '58%',
      plugins: {
        legend: {display: false},
        tooltip: {...tooltipOf(spec), callbacks: {label: (item) => `${spec.labels[item.dataIndex]}: ${withUnit(item.parsed, spec.y.unit)}, ${withUnit(item.parsed / total, 'share')}`}},
      },
    },
  };
}

function configOf(spec) {
  if (spec.kind === 'shares') return ringConfig(spec);
  const family = families[spec.kind];
  const x = spec.x || {}, y = spec.y || {};
  const category = {type: 'category', grid: {display: false, borderColor: color('line')}, ticks: {color: color('text'), autoSkip: spec.labels && spec.labels.length > 40}};
  const values = axis(spec, y, {stacked: Boolean(spec.stacked), beginAtZero: spec.kind !== 'points' && !y.log && y.zero !== false, grace: spec.kind === 'series' ? '5%' : 0, min: y.min, max: y.max});
  const along = spec.kind === 'bars' ? {...category, stacked: Boolean(spec.stacked)}
    : axis(spec, x, {offset: false, stacked: false});
  return {
    type: family.type,
    data: {labels: spec.kind === 'bars' ? spec.labels : undefined, datasets: family.sets(spec)},
    plugins: spec.kind === 'series' ? [notesOf(spec)] : [],
    options: {
      responsive: true, maintainAspectRatio: false, animation: false, indexAxis: spec.horizontal ? 'y' : 'x',
      interaction: {mode: spec.kind === 'points' ? 'nearest' : spec.curves ? 'nearestOfEach' : 'index', axis: spec.horizontal ? 'y' : 'x', intersect: spec.kind === 'points'},
      scales: spec.horizontal ? {y: along, x: values} : {x: along, y: values},
      plugins: {legend: {display: false}, tooltip: tooltipOf(spec)},
    },
  };
}

// The range of x that the chart's values cover.
function wholeRange(spec) {
  let [first, last] = [Infinity, -Infinity];
  for (const set of spec.sets) {
    const count = set.y.length;
    if (!count) continue;
    const step = spec.kind === 'histogram' ? spec.dx : 0;
    first = Math.min(first, set.x ? Math.min(...set.x) : xOf(set, spec, 0));
    last = Math.max(last, set.x ? Math.max(...set.x) : xOf(set, spec, count - 1) + step);
  }
  return first < last ? [first, last] : [first - 0.5, first + 0.5];
}

function drawChart(canvas, spec) {
  const chart = new Chart(canvas, configOf(spec));
  if (spec.kind === 'series' || spec.kind === 'histogram') {
    chart.$whole = spec.whole || wholeRange(spec);
    chart.$range = null;
    chart.$area = () => [chart.chartArea.left, chart.chartArea.right, chart.chartArea.top, chart.chartArea.bottom];
    chart.$valueAt = (pixel) => chart.scales.x.getValueForPixel(pixel);
    chart.$setRange = (range) => {
      chart.$range = range;
      [chart.options.scales.x.min, chart.options.scales.x.max] = range || chart.$whole;
      chart.update('none');
    };
    chart.$setRange(null);
  }
  return chart;
}
