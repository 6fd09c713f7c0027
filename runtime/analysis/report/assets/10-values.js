// Numbers as people read them, the same way as the C++ side writes them, and the page's colours.

const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function withUnit(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return '-';
  const size = Math.abs(value);
  if (unit === 's') {
    if (size === 0) return '0 s';
    if (size < 1e-3) return (value * 1e6).toPrecision(3) + ' us';
    if (size < 1) return Number((value * 1e3).toPrecision(3)) + ' ms';
    if (size < 120) return Number(value.toPrecision(3)) + ' s';
    if (size < 7200) return Math.floor(value / 60) + ' min ' + String(Math.round(value % 60)).padStart(2, '0') + ' s';
    return Math.floor(value / 3600) + ' h ' + String(Math.round((value % 3600) / 60)).padStart(2, '0') + ' min';
  }
  if (unit === 'bytes' || unit === 'bytes/s') {
    const names = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    const step = size < 1 ? 0 : Math.min(names.length - 1, Math.floor(Math.log2(size) / 10));
    return Number((value / 2 ** (10 * step)).toPrecision(3)) + ' ' + names[step] + (unit === 'bytes' ? '' : '/s');
  }
  if (unit === 'percent') return Number(value.toPrecision(3)) + '%';
  if (unit === 'share') return Number((value * 100).toPrecision(3)) + '%';
  const text = size >= 1000 ? Math.round(value).toLocaleString('en-US') : String(Number(value.toPrecision(4)));
  return unit ? text + ' ' + unit : text;
}

// An exponential moving average; the first values weigh no more than later ones do.
function smoothed(values, weight) {
  let sum = 0, weights = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    weights = weights * weight + (1 - weight);
    return sum / weights;
  });
}

// Colours by name, as report.css defines them for the theme that is shown.
let style = getComputedStyle(document.documentElement);
const color = (name) => style.getPropertyValue('--' + name).trim() || name;
const several = ['compute', 'data', 'validation', 'skew', 'wait', 'optimizer', 'checkpoint', 'other'];
const dashes = [[], [6, 3], [2, 2], [8, 3, 2, 3]];  // with the eight colours: lines that can be told apart without them
// A set with a place (a run among several) looks the same in all charts.
const colorOf = (set, index) => color(set.color || several[(set.place ?? index) % several.length]);
const dashOf = (set, index) => set.color ? [] : dashes[Math.floor((set.place ?? index) / several.length) % dashes.length];

function transparent(hex, alpha) {
  const parts = /^#(..)(..)(..)$/.exec(hex);
  return parts ? `rgba(${parts.slice(1).map((part) => parseInt(part, 16)).join(',')},${alpha})` : hex;
}

const speech = document.querySelector('.speech');
const say = (text) => { speech.textContent = text; };
