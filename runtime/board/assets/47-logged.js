// The pictures and histograms that a run has logged, each with a slider over its batches.

const kBars = 40;

// Counts of equal bins between the least and the greatest value; within a bin of the file, values are taken to be spread evenly.
function barsOf({least, greatest, limits, counts}) {
  const span = greatest - least;
  if (!(span > 0)) return [counts.reduce((sum, count) => sum + count, 0)];
  const bars = new Array(kBars).fill(0);
  counts.forEach((count, i) => {
    if (!count) return;
    const low = Math.max(least, i ? limits[i - 1] : least), high = Math.min(greatest, limits[i]);
    const from = kBars * (low - least) / span, to = kBars * (high - least) / span;
    for (let bar = Math.max(0, Math.floor(from)); bar < Math.min(kBars, Math.ceil(to)); ++bar) {
      bars[bar] += count * (Math.min(to, bar + 1) - Math.max(from, bar)) / (to - from);
    }
    if (!(to > from)) bars[Math.min(kBars - 1, Math.floor(from))] += count;
  });
  return bars;
}

function drawHistogram(histogram) {
  const bars = barsOf(histogram), most = Math.max(...bars, 1e-9), width = 400 / bars.length;
  const picture = svg('svg', {class: 'histogram', viewBox: '0 0 400 140', role: 'img', preserveAspectRatio: 'none'});
  bars.forEach((count, i) => {
    const height = 136 * count / most;
    picture.append(svg('rect', {x: i * width + 0.5, y: 138 - height, width: Math.max(0.5, width - 1), height}));
  });
  return picture;
}

function loggedPart(path) {
  const {section, body} = part('Pictures and histograms');
  section.hidden = true;
  body.className = 'charts';
  const cards = new Map();

  function cardOf({name, kind}) {
    const slider = make('input', {type: 'range', min: 0, step: 1});
    slider.setAttribute('aria-label', `Batch of ${name}`);
    const about = make('p'), place = make('div', {className: 'logged'});
    const element = make('div', {className: 'chart'}, make('h3', {textContent: name}), about, place, slider);
    body.append(element);
    const card = {slider, element, steps: [], shown: null};
    const words = (text) => {
      about.textContent = text;
      slider.setAttribute('aria-valuetext', text);
    };
    card.show = async () => {
      const step = card.steps[Number(slider.value)];
      if (step === undefined || step === card.shown) return;
      card.shown = step;
      const batch = `batch ${step.toLocaleString('en-US')}`;
      const query = `?name=${encodeURIComponent(name)}&step=${step}`;
      if (kind === 'picture') {
        words(batch);
        const picture = make('img', {alt: `${name}, ${batch}`, src: `api/${path}/picture${query}`});
        picture.addEventListener('error', () => { if (card.shown === step) place.replaceChildren('The picture cannot be shown.'); });
        await picture.decode().catch(() => {});
        if (card.shown === step && picture.naturalWidth) place.replaceChildren(picture);
        return;
      }
      try {
        const histogram = await ask(`${path}/histogram${query}`);
        if (card.shown !== step) return;
        words(`${batch}: ${histogram.count.toLocaleString('en-US')} values, mean ${digits(histogram.mean)}`);
        const picture = drawHistogram(histogram);
        picture.setAttribute('aria-label', `Histogram of ${name}, from ${digits(histogram.least)} to ${digits(histogram.greatest)}`);
        place.replaceChildren(picture, make('div', {className: 'ends'}, make('span', {textContent: digits(histogram.least)}),
          make('span', {textContent: digits(histogram.greatest)})));
      } catch (error) {
        place.replaceChildren(error.message);
      }
    };
    slider.addEventListener('input', card.show);
    return card;
  }

  return {
    section,
    async refresh() {
      const {values} = await ask(`${path}/logged`);
      section.hidden = !values.length;
      const wanted = new Set(values.map(({kind, name}) => `${kind}/${name}`));
      for (const [key, card] of cards) {
        if (wanted.has(key)) continue;
        card.element.remove();
        cards.delete(key);
      }
      for (const value of values) {
        const key = `${value.kind}/${value.name}`;
        if (!cards.has(key)) cards.set(key, cardOf(value));
        const card = cards.get(key);
        const atEnd = Number(card.slider.value) >= card.steps.length - 1 || !card.steps.length;
        const shown = card.steps[Number(card.slider.value)];
        card.steps = value.steps;
        card.slider.max = value.steps.length - 1;
        card.slider.value = atEnd ? value.steps.length - 1 : Math.max(0, value.steps.findIndex((step) => step >= shown));
        card.slider.disabled = value.steps.length < 2;
        card.show();
      }
    },
  };
}
