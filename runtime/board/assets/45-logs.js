// The logs of a run: of any rank, with search and follow.

function logPart(path, about) {
  const choice = make('select');
  choice.setAttribute('aria-label', 'Log of');
  const search = make('input', {type: 'search', placeholder: 'Only lines with …'});
  search.setAttribute('aria-label', 'Search the log');
  const follow = make('input', {type: 'checkbox', checked: true});
  const {section, body} = part('Logs', choice, search, make('label', {}, follow, 'Follow'));
  const text = make('pre', {className: 'log', tabIndex: 0});
  text.setAttribute('role', 'group');
  text.setAttribute('aria-label', 'Log');
  body.append(text);
  const most = 5000;
  let lines = [], next = -1, asking = false, closed = false;

  function lineOf(line) {
    const at = search.value ? line.toLowerCase().indexOf(search.value.toLowerCase()) : -1;
    if (at < 0) return [`${line}\n`];
    return [line.slice(0, at), make('mark', {textContent: line.slice(at, at + search.value.length)}), `${line.slice(at + search.value.length)}\n`];
  }

  function draw() {
    const shown = search.value ? lines.filter((line) => line.toLowerCase().includes(search.value.toLowerCase())) : lines;
    text.replaceChildren(...shown.flatMap(lineOf));
    if (!shown.length) text.textContent = lines.length ? 'No line has this.' : 'The log is empty.';
    if (follow.checked) text.scrollTop = text.scrollHeight;
  }

  async function read() {
    if (asking || closed || choice.value === '') return;
    asking = true;
    try {
      let part;
      do {
        const of = choice.value;
        part = await ask(`${path}/log?rank=${of}&from=${next}`);
        if (of !== choice.value) break;
        next = part.next;
        lines = lines.concat(part.lines).slice(-most);
        if (part.lines.length || !text.textContent) draw();
      } while (part.lines.length && next < part.size && !closed);
    } catch (error) {
      text.textContent = error.message;
    } finally {
      asking = false;
    }
  }

  choice.addEventListener('change', () => { lines = []; next = -1; text.textContent = ''; read(); });
  search.addEventListener('input', draw);
  follow.addEventListener('change', draw);
  return {
    section,
    refresh() {
      const known = about();
      if (known && choice.options.length !== known.logs.length + (known.launcher_log ? 1 : 0)) {
        const before = choice.value;
        choice.replaceChildren(...known.logs.map((rank) => make('option', {value: rank, textContent: `rank ${rank}`})),
          ...(known.launcher_log ? [make('option', {value: -1, textContent: 'launcher'})] : []));
        if (before) choice.value = before;
      }
      read();
    },
    close() { closed = true; },
  };
}
