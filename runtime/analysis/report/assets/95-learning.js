// The switches of the curves of learning: batches or time, smoothing, log scale.

const curveFigures = figures.filter((figure) => figure.base.over);

function switchCurves(changes) {
  if (changes.over && curveFigures.length) showRange(curveFigures[0].zoom, null);
  Object.assign(curveSwitches, changes);
  for (const figure of curveFigures) figure.switched();
}

if (curveFigures.length) {
  const over = byId('curves-over'), smoothing = byId('curves-smoothing'), log = byId('curves-log');
  const weight = () => Number(smoothing.value);
  over.addEventListener('change', () => switchCurves({over: over.value}));
  log.addEventListener('change', () => switchCurves({log: log.checked}));
  let waiting = false;
  smoothing.addEventListener('input', () => {
    byId('curves-smoothed').value = weight().toFixed(2);
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      switchCurves({smoothing: weight()});
    });
  });
  // A browser keeps what was chosen when a page is loaded again.
  byId('curves-smoothed').value = weight().toFixed(2);
  switchCurves({over: over.value, smoothing: weight(), log: log.checked});
}
