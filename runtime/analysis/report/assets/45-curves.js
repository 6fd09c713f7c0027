// Curves of learning: what the page's switches make of them, and what else is drawn on a chart of lines.
//   spec: {"over": {"batches": {"title", "unit", "whole"}, "time": ...}, "sets": [{"batches": [], "time": [], "y": [], "scatters"}]}
// "y" is null where a value is nan or infinite; "bad" has the points in which there is such a value. "marks" are
// {"batches", "time", "text"}.

const curveSwitches = {over: 'batches', smoothing: 0, log: false};

// Where the y axis begins: at zero for rates, and for values that come near it or are all the same; else near the least.
function beginningOf(spec, least, greatest) {
  const near = least >= 0 && (least <= greatest / 2 || least === greatest);
  return spec.y.zero || near ? 0 : undefined;
}

// The chart of kind "series" that is shown now. A curve with a value of zero or less has no log scale.
function shownCurves(spec) {
  const {over, smoothing} = curveSwitches;
  const {title, unit, whole} = spec.over[over];
  const values = spec.sets.flatMap((set) => [...(set.low || set.y), ...(set.high || [])]).filter((value) => value !== null);
  const least = Math.min(...values), greatest = Math.max(...values);
  const log = curveSwitches.log && least > 0;
  const sets = spec.sets.map((set) => ({
    ...set, x: set[over], smooth: smoothing > 0 && set.scatters && set.y.length > 2 ? smoothed(set.y, smoothing) : undefined,
  }));
  return {...spec, curves: true, x: {title, unit}, whole, y: {...spec.y, zero: false, log, min: log ? undefined : beginningOf(spec, least, greatest)}, sets, marks: (spec.marks || []).map((mark) => mark[over])};
}

// In each of the sets (numbers of datasets) the point nearest to x.
function nearestPoints(chart, sets, x) {
  return sets.flatMap((datasetIndex) => {
    let best = -1;
    chart.data.datasets[datasetIndex].data.forEach((point, index, all) => {
      if (point.y !== null && (best < 0 || Math.abs(point.x - x) < Math.abs(all[best].x - x))) best = index;
    });
    return best < 0 ? [] : [{datasetIndex, index: best}];
  });
}

// By keyboard: the point `index` of the longest set, and what the others have there.
function nearestToLongest(chart, sets, index) {
  const length = (number) => chart.data.datasets[number].data.length;
  const longest = sets.reduce((best, number) => length(number) > length(best) ? number : best);
  return nearestPoints(chart, sets, chart.data.datasets[longest].data[index].x);
}

Chart.Interaction.modes.nearestOfEach = (chart, event) => {
  const x = chart.scales.x.getValueForPixel(Chart.helpers.getRelativePosition(event, chart).x);
  const sets = chart.getSortedVisibleDatasetMetas().map((meta) => meta.index);
  return nearestPoints(chart, sets, x).map((item) => ({...item, element: chart.getDatasetMeta(item.datasetIndex).data[item.index]}));
};

// Sets whose values are at places of their own, with one row a place.
function onOneAxis(sets) {
  const x = [...new Set(sets.flatMap((set) => set.x))].sort((a, b) => a - b);
  return sets.map((set) => {
    const values = new Map(set.x.map((place, i) => [place, set.y[i]]));
    return {...set, x, y: x.map((place) => values.get(place))};
  });
}

// Of the sets that are shown, the points whose values are beyond the axis: [x, the set's number].
function beyondAxis(chart, spec) {
  const shown = new Set(chart.data.datasets.flatMap((data, number) => chart.isDatasetVisible(number) ? [data.set] : []));
  const beyond = (set) => set.beyond || set.high.flatMap((value, i) => value > spec.y.max ? [i] : []);
  return spec.sets.flatMap((set, index) => shown.has(index) ? beyond(set).map((i) => [xOf(set, spec, i), index]) : []);
}

// Marks on the x axis, points without a value, and points beyond the y axis.
function notesOf(spec) {
  const draw = (chart) => {
    const {left, right, top, bottom} = chart.chartArea;
    const pen = chart.ctx;
    const within = (x) => x >= left - 1 && x <= right + 1;
    pen.save();
    pen.strokeStyle = color('soft');
    pen.lineWidth = 1;
    pen.setLineDash([4, 3]);
    for (const mark of spec.marks || []) {
      const x = Math.round(chart.scales.x.getPixelForValue(mark)) + 0.5;
      if (!within(x)) continue;
      pen.beginPath();
      pen.moveTo(x, top);
      pen.lineTo(x, bottom);
      pen.stroke();
    }
    pen.setLineDash([]);
    pen.strokeStyle = color('bad');
    pen.lineWidth = 2;
    spec.sets.forEach((set, index) => {
      if (!set.bad || !chart.data.datasets.some((data, number) => data.set === index && chart.isDatasetVisible(number))) return;
      for (const i of set.bad) {
        const x = chart.scales.x.getPixelForValue(xOf(set, spec, i));
        if (!within(x)) continue;
        for (const slope of [1, -1]) {
          pen.beginPath();
          pen.moveTo(x - 4, top + 7 - 4 * slope);
          pen.lineTo(x + 4, top + 7 + 4 * slope);
          pen.stroke();
        }
      }
    });
    for (const [value, index] of !spec.y.clipped ? [] : beyondAxis(chart, spec)) {
      const x = chart.scales.x.getPixelForValue(value);
      if (!within(x)) continue;
      pen.fillStyle = colorOf(spec.sets[index], index);
      pen.beginPath();
      pen.moveTo(x, top + 1);
      pen.lineTo(x - 4, top + 8);
      pen.lineTo(x + 4, top + 8);
      pen.fill();
    }
    pen.restore();
  };
  return {id: 'notes', afterDatasetsDraw: draw};
}
