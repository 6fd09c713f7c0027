// A figure: its chart, the keys that show and hide its sets, its values as a table, and the keyboard.

class Figure {
  constructor(element, spec) {
    this.element = element;
    this.base = spec;
    this.spec = spec.over ? shownCurves(spec) : spec;
    this.canvas = element.querySelector('canvas');
    this.tools = element.querySelector('.tools');
    this.names = spec.kind === 'shares' ? spec.labels : spec.sets.map((set) => set.name);
    this.hidden = this.names.map((_, index) => Boolean(spec.kind !== 'shares' && spec.sets[index].hidden));
    this.keys = [];
    this.draw();
    this.makeKeys();
    this.makeTools();
    this.canvas.addEventListener('keydown', (event) => this.key(event));
  }

  get zoomable() { return Boolean(this.chart.$whole); }

  draw() {
    const range = this.chart && this.chart.$range;
    if (this.chart) this.chart.destroy();
    this.chart = this.spec.kind === 'timeline' ? new Timeline(this.canvas, this.spec) : drawChart(this.canvas, this.spec);
    if (this.spec.kind === 'timeline' && this.rank !== undefined) this.chart.chooseRank(this.rank);
    if (this.zoomable) this.follow(range);
    this.hidden.forEach((hidden, index) => { if (hidden) this.apply(index); });
    this.refresh();
  }

  // The zoom stays with the figure when its chart is drawn anew.
  follow(range) {
    if (!this.zoom) {
      const figure = this;
      this.zoom = {
        canvas: this.canvas,
        get $whole() { return figure.chart.$whole; },
        get $range() { return figure.chart.$range; },
        $area: () => figure.chart.$area(),
        $valueAt: (pixel) => figure.chart.$valueAt(pixel),
        $setRange: (to) => { figure.chart.$setRange(to); if (figure.whole) figure.whole.hidden = !to; },
      };
      makeZoomable(this.zoom, this.spec.group);
    }
    if (range) this.chart.$setRange(range);
  }

  refresh() { if (this.chart.update) this.chart.update('none'); }

  // The page's switches of curves have changed.
  switched() {
    this.spec = shownCurves(this.base);
    this.draw();
    if (!this.table) return;
    const old = this.table;
    this.makeValues();
    old.replaceWith(this.table);
  }

  apply(index) {
    const hidden = this.hidden[index];
    if (this.spec.kind === 'timeline') return this.chart.setHidden(index, hidden);
    if (this.spec.kind === 'shares') {
      if (this.chart.getDataVisibility(index) === hidden) this.chart.toggleDataVisibility(index);
      return;
    }
    this.chart.data.datasets.forEach((set, number) => { if (set.set === index) this.chart.setDatasetVisibility(number, !hidden); });
  }

  setHidden(index, hidden) {
    if (this.hidden[index] === hidden) return;
    this.hidden[index] = hidden;
    this.apply(index);
    this.keys[index].setAttribute('aria-pressed', String(!hidden));
    this.keys[index].hidden = hidden && this.quiet(index);
  }

  // One of many: its key shows only while the set does.
  quiet(index) { return this.spec.kind !== 'shares' && Boolean(this.spec.sets[index].hidden); }

  makeKeys() {
    this.keys = this.names.map((name, index) => {
      const key = make('button', {type: 'button', className: 'key'}, make('i', {className: 'dot'}), name);
      key.setAttribute('aria-pressed', String(!this.hidden[index]));
      key.hidden = this.hidden[index];
      key.addEventListener('click', () => { this.setHidden(index, !this.hidden[index]); this.refresh(); });
      return key;
    });
    if (this.names.length > 1) this.tools.append(...this.keys);
    this.paintKeys();
  }

  paintKeys() {
    this.keys.forEach((key, index) => {
      const set = this.spec.kind === 'shares' ? {color: (this.spec.sets[0].colors || several)[index]} : this.spec.sets[index];
      key.firstChild.style.background = set.colors ? color(set.colors[0]) : colorOf(set, index);
    });
  }

  makeTools() {
    const right = make('span', {className: 'right'});
    this.tools.append(right);
    if (this.zoomable) {
      this.whole = make('button', {type: 'button', textContent: 'Show all', hidden: true});
      this.whole.addEventListener('click', () => showRange(this.zoom, null));
      right.append(this.whole);
      this.canvas.title = 'Drag to zoom, double-click to show all. Keys: arrows, + and -, 0.';
    }
    if (this.spec.kind === 'timeline') return;
    const button = make('button', {type: 'button', textContent: 'Values'});
    button.setAttribute('aria-expanded', 'false');
    button.addEventListener('click', () => this.toggleValues(button));
    right.append(button);
  }

  toggleValues(button) {
    const open = button.getAttribute('aria-expanded') === 'true';
    button.setAttribute('aria-expanded', String(!open));
    if (open) {
      this.table.remove();
      this.table = null;
      return;
    }
    this.makeValues();
    this.element.append(this.table);
  }

  makeValues() {
    this.table = valuesTable(this.spec, this.element.querySelector('figcaption strong').textContent, this.hidden);
    prepareTable(this.table.querySelector('table'));
  }

  chooseRank(rank) {
    this.rank = rank;
    if (this.spec.kind === 'timeline') return this.chart.chooseRank(rank);
    if (this.spec.kind === 'shares' || !this.spec.sets.some((set) => set.rank !== undefined)) return;
    this.spec.sets.forEach((set, index) => {
      if (set.rank === undefined) return;
      this.setHidden(index, rank === null ? Boolean(set.hidden) : set.rank !== rank);
    });
    this.refresh();
  }

  key(event) {
    const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    if (this.spec.kind === 'timeline') return say(this.chart.step(...move));
    this.index = (this.index ?? -1) + (move[0] || move[1]);
    const sets = this.chart.data.datasets.map((_, number) => number).filter((number) => this.chart.isDatasetVisible(number));
    if (!sets.length) return;
    const count = Math.max(...sets.map((number) => this.chart.data.datasets[number].data.length));
    this.index = (this.index + count) % count;
    const active = this.spec.curves ? nearestToLongest(this.chart, sets, this.index)
      : sets.filter((number) => this.index < this.chart.data.datasets[number].data.length).map((datasetIndex) => ({datasetIndex, index: this.index}));
    this.chart.setActiveElements(active);
    const {left, top} = this.chart.chartArea;
    this.chart.tooltip.setActiveElements(active, {x: left, y: top});
    this.chart.update('none');
    say([...this.chart.tooltip.title, ...this.chart.tooltip.body.flatMap((part) => part.lines)].join(', '));
  }
}

function valuesTable(spec, caption, hidden) {
  const head = make('tr'), body = make('tbody');
  const heading = (text, number) => make('th', {scope: 'col', textContent: text, className: number ? 'number' : ''});
  const first = spec.labels ? '' : (spec.x && spec.x.title) || '';
  let sets = spec.sets.filter((_, index) => spec.kind === 'shares' || !hidden[index]);
  head.append(heading(first || 'Name', !spec.labels), ...sets.map((set) => heading(set.name, true)));
  if (spec.curves) sets = onOneAxis(sets);
  const count = Math.max(0, ...sets.map((set) => set.y.length));
  for (let i = 0; i < count; ++i) {
    const lead = sets.find((set) => set.y.length > i);
    const row = make('tr');
    const x = spec.labels ? null : xOf(lead, spec, i);
    row.append(spec.labels ? make('th', {scope: 'row', textContent: spec.labels[i]})
      : make('th', {scope: 'row', className: 'number', textContent: withUnit(x, spec.x.unit)}));
    if (x !== null) row.firstChild.dataset.value = x;
    for (const set of sets) {
      const value = set.low && spec.kind === 'bars' ? set.y[i] - set.low[i] : set.y[i];
      const cell = make('td', {className: 'number', textContent: withUnit(value, spec.y.unit)});
      if (value !== undefined && value !== null) cell.dataset.value = value;
      row.append(cell);
    }
    body.append(row);
  }
  const table = make('table', {}, make('caption', {textContent: 'Values of: ' + caption}), make('thead', {}, head), body);
  return make('div', {className: 'scroll values'}, table);
}
