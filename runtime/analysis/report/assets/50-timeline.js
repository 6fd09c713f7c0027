// What each rank did over the run: a row a rank, time from left to right, each column filled from below by the shares of the
// phases in it. Chart.js has no such chart; this one has the same interface as one of its (drawChart()).
//   spec: {"kind": "timeline", "x0", "dx", "sets": [{"name", "color"}], "rows": [{"name", "rank", "shares": [[percent, ...]]}]}
// `shares` has an array a set (an empty one: nothing of it), each with a value a column.

class Timeline {
  constructor(canvas, spec) {
    this.canvas = canvas;
    this.spec = spec;
    this.hidden = new Set();
    this.rank = null;
    this.columns = Math.max(1, ...spec.rows.flatMap((row) => row.shares.map((share) => share.length)));
    this.$whole = [spec.x0, spec.x0 + spec.dx * this.columns];
    this.$range = null;
    this.tip = make('div', {className: 'tip'});
    canvas.parentNode.append(this.tip);
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(canvas.parentNode);
    this.moved = (event) => this.point(event.offsetX, event.offsetY);
    this.left = () => this.hideTip();
    canvas.addEventListener('pointermove', this.moved);
    canvas.addEventListener('pointerleave', this.left);
    this.draw();
  }

  destroy() {
    this.watch.disconnect();
    this.tip.remove();
    this.canvas.removeEventListener('pointermove', this.moved);
    this.canvas.removeEventListener('pointerleave', this.left);
  }

  get rows() { return this.spec.rows.filter((row) => this.rank === null || row.rank === this.rank); }
  $area() { return [this.area.left, this.area.right, this.area.top, this.area.bottom]; }
  $valueAt(pixel) {
    const [from, to] = this.$range || this.$whole;
    return from + (pixel - this.area.left) / (this.area.right - this.area.left) * (to - from);
  }
  $setRange(range) { this.$range = range; this.draw(); }
  setHidden(index, hidden) { this.hidden[hidden ? 'add' : 'delete'](index); this.draw(); }
  chooseRank(rank) { this.rank = rank; this.draw(); }

  draw() {
    const {clientWidth: width, clientHeight: height} = this.canvas.parentNode;
    if (!width || !height) return;
    const scale = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    Object.assign(this.canvas.style, {width: width + 'px', height: height + 'px'});
    const pen = this.canvas.getContext('2d');
    pen.scale(scale, scale);
    pen.font = '12px ' + getComputedStyle(document.body).fontFamily;
    const names = Math.max(...this.rows.map((row) => pen.measureText(row.name).width), 20);
    this.area = {left: names + 12, right: width - 8, top: 4, bottom: height - 24};
    this.drawRows(pen);
    this.drawAxis(pen);
  }

  drawRows(pen) {
    const {left, right, top, bottom} = this.area;
    const rows = this.rows;
    const high = (bottom - top) / rows.length;
    const gap = Math.min(4, high * 0.15);
    const fills = this.spec.sets.map((set) => color(set.color));
    const [from, to] = this.$range || this.$whole;
    const pixels = (right - left) / (to - from);
    const first = Math.max(0, Math.floor((from - this.spec.x0) / this.spec.dx));
    const last = Math.min(this.columns - 1, Math.floor((to - this.spec.x0) / this.spec.dx));
    pen.textBaseline = 'middle';
    pen.textAlign = 'right';
    const every = Math.ceil(14 / high);
    rows.forEach((row, number) => {
      const y = top + number * high;
      pen.fillStyle = color('soft');
      if (number % every === 0) pen.fillText(row.name, left - 6, y + high / 2);
      pen.fillStyle = color('shade');
      pen.fillRect(left, y, right - left, high - gap);
      for (let column = first; column <= last; ++column) {
        const begin = Math.max(left, left + (this.spec.x0 + column * this.spec.dx - from) * pixels);
        const end = Math.min(right, left + (this.spec.x0 + (column + 1) * this.spec.dx - from) * pixels);
        let base = y + high - gap;
        row.shares.forEach((share, index) => {
          const part = (share[column] || 0) / 100 * (high - gap);
          if (part <= 0 || this.hidden.has(index)) return;
          pen.fillStyle = fills[index];
          pen.fillRect(begin, base - part, end - begin + 0.4, part);
          base -= part;
        });
      }
    });
  }

  drawAxis(pen) {
    const {left, right, bottom} = this.area;
    const [from, to] = this.$range || this.$whole;
    const rough = (to - from) / Math.max(2, (right - left) / 90);
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= rough);
    pen.fillStyle = color('soft');
    pen.strokeStyle = color('line');
    pen.textAlign = 'center';
    pen.textBaseline = 'top';
    for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
      const x = left + (tick - from) / (to - from) * (right - left);
      pen.beginPath();
      pen.moveTo(x, bottom);
      pen.lineTo(x, bottom + 4);
      pen.stroke();
      pen.fillText(withUnit(Math.abs(tick) < step / 1e6 ? 0 : tick, 's'), x, bottom + 7);
    }
  }

  textAt(number, column) {
    const row = this.rows[number];
    const begin = this.spec.x0 + column * this.spec.dx;
    const lines = this.spec.sets.map((set, index) => [set.name, (row.shares[index] || [])[column] || 0])
      .filter(([, share]) => share >= 1).map(([name, share]) => `${name} ${share}%`);
    return [`${row.name}, ${withUnit(begin, 's')} to ${withUnit(begin + this.spec.dx, 's')}`, ...(lines.length ? lines : ['nothing recorded'])].join('\n');
  }

  point(x, y) {
    const {left, right, top, bottom} = this.area;
    if (x < left || x > right || y < top || y > bottom) return this.hideTip();
    const number = Math.min(this.rows.length - 1, Math.floor((y - top) / (bottom - top) * this.rows.length));
    const column = Math.max(0, Math.min(this.columns - 1, Math.floor((this.$valueAt(x) - this.spec.x0) / this.spec.dx)));
    this.showTip(number, column, x, y);
  }

  showTip(number, column, x, y) {
    this.tip.textContent = this.textAt(number, column);
    this.tip.style.display = 'block';
    const width = this.canvas.parentNode.clientWidth;
    this.tip.style.left = Math.max(0, x + 14 + this.tip.offsetWidth > width ? x - 14 - this.tip.offsetWidth : x + 14) + 'px';
    this.tip.style.top = Math.max(0, y - this.tip.offsetHeight / 2) + 'px';
  }
  hideTip() { this.tip.style.display = 'none'; }

  // By keyboard: `across` columns to the right, `down` rows.
  step(across, down) {
    const [from, to] = this.$range || this.$whole;
    const first = Math.max(0, Math.ceil((from - this.spec.x0) / this.spec.dx - 1e-6));
    const last = Math.min(this.columns - 1, Math.ceil((to - this.spec.x0) / this.spec.dx - 1e-6) - 1);
    this.at ??= {number: 0, column: first - across};
    this.at.column = Math.max(first, Math.min(last, this.at.column + across));
    this.at.number = Math.max(0, Math.min(this.rows.length - 1, this.at.number + down));
    const {left, right, top, bottom} = this.area;
    const x = left + (this.spec.x0 + (this.at.column + 0.5) * this.spec.dx - from) / (to - from) * (right - left);
    this.showTip(this.at.number, this.at.column, x, top + (this.at.number + 0.5) * (bottom - top) / this.rows.length);
    return this.textAt(this.at.number, this.at.column).replaceAll('\n', ', ');
  }
}
