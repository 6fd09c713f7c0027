// Zooming along the x axis of a chart: drag over a part of it, or + and - on the keyboard; arrows move; 0, Escape or a
// double click show everything again. Charts of the same group (the same clock) follow each other.

const groups = new Map();

function showRange(chart, range) {
  const members = chart.$group ? groups.get(chart.$group) : [chart];
  for (const one of members) one.$setRange(range);
}

function rangeOf(chart) {
  const [first, last] = chart.$whole;
  return chart.$range || [first, last];
}

function zoomBy(chart, factor) {
  const [from, to] = rangeOf(chart);
  const middle = (from + to) / 2;
  const half = (to - from) / 2 * factor;
  const [first, last] = chart.$whole;
  if (half * 2 >= last - first) return showRange(chart, null);
  showRange(chart, [Math.max(first, middle - half), Math.min(last, middle + half)]);
}

function moveBy(chart, share) {
  if (!chart.$range) return;
  const [from, to] = chart.$range;
  const [first, last] = chart.$whole;
  const step = Math.max(first - from, Math.min(last - to, (to - from) * share));
  showRange(chart, [from + step, to + step]);
}

// `chart` has canvas, $whole, $range, $setRange(), $valueAt(pixel) and $area() -> [left, right, top, bottom].
function makeZoomable(chart, group) {
  if (group) {
    chart.$group = group;
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push(chart);
  }
  const canvas = chart.canvas;
  const box = make('div', {className: 'selection'});
  Object.assign(box.style, {position: 'absolute', pointerEvents: 'none', display: 'none'});
  canvas.parentNode.append(box);
  let from = null;
  const inside = (event) => {
    const [left, right] = chart.$area();
    return Math.max(left, Math.min(right, event.offsetX));
  };
  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    from = inside(event);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (from === null) return;
    const to = inside(event);
    const [, , top, bottom] = chart.$area();
    Object.assign(box.style, {
      display: 'block', left: Math.min(from, to) + 'px', width: Math.abs(to - from) + 'px', top: top + 'px',
      height: bottom - top + 'px', background: transparent(color('strong'), 0.18), borderRadius: '2px',
    });
  });
  const release = (event) => {
    if (from === null) return;
    const [start, end] = [from, inside(event)].sort((a, b) => a - b);
    from = null;
    box.style.display = 'none';
    if (event.type === 'pointerup' && end - start > 6) showRange(chart, [chart.$valueAt(start), chart.$valueAt(end)]);
  };
  canvas.addEventListener('pointerup', release);
  canvas.addEventListener('pointercancel', release);
  canvas.addEventListener('dblclick', () => showRange(chart, null));
  canvas.addEventListener('keydown', (event) => {
    const actions = {
      '+': () => zoomBy(chart, 0.5), '=': () => zoomBy(chart, 0.5), '-': () => zoomBy(chart, 2),
      '0': () => showRange(chart, null), 'Escape': () => showRange(chart, null),
      'PageUp': () => moveBy(chart, -0.5), 'PageDown': () => moveBy(chart, 0.5),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
}
