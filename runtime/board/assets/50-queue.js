// The queue: tasks, slots, who waits for whom, and what may be done to them.

function queuePage(main) {
  const {section, body, head} = part('Queue');
  head.firstChild.replaceWith(make('h2', {textContent: 'Queue'}));
  const note = make('p', {className: 'note', textContent: 'Tasks are launches of this user on this machine. A lower priority number goes first.'});
  section.append(note);
  main.append(section);
  let control = null;  // null: not known yet

  async function act(task, action) {
    if (action === 'kill' && !confirm(`Stop task ${task.id} (${task.name})?`)) return;
    try {
      const done = await ask(`task/${task.id}/${action}`, {method: 'POST'});
      note.textContent = done.text;
      say(done.text);
    } catch (error) {
      note.textContent = error.message;
      say(error.message);
    }
  }

  function actionsOf(task) {
    if (task.ended || !control) return '';
    const paused = task.state === 'paused';
    return make('span', {}, ...[['kill', 'Stop'], paused ? ['activate', 'Activate'] : ['pause', 'Pause']].map(([action, word]) => {
      const button = make('button', {type: 'button', textContent: word});
      button.setAttribute('aria-label', `${word} task ${task.id}`);
      button.addEventListener('click', () => act(task, action));
      return button;
    }));
  }

  function draw(queue) {
    if (queue.error) return body.replaceChildren(make('p', {className: 'error', textContent: queue.error}));
    const columns = [
      {title: 'task', number: true, cell: (task) => String(task.id)},
      {title: 'name', cell: (task) => task.name},
      {title: 'state', cell: (task) => stateBadge(task.state)},
      {title: 'slots', number: true, cell: (task) => String(task.slots)},
      {title: 'where', cell: (task) => task.claim.map(({agent, cores, gpus, slots}) => `${agent}: ${gpus.join(' ') || cores.join(' | ') || slots.join(',')}`).join('; ') || '-'},
      {title: 'priority', number: true, cell: (task) => String(task.priority)},
      {title: 'waits behind', cell: (task) => task.behind.join(', ') || '-'},
      {title: 'reason', wide: true, cell: (task) => task.reason || '-'},
      {title: 'submitted', cell: (task) => when(task.submitted_s)},
      {title: 'ended', cell: (task) => when(task.ended_s)},
    ];
    if (control) columns.push({title: 'may be', cell: actionsOf});
    const focus = document.activeElement?.getAttribute('aria-label');
    redraw(body, queue.tasks.length ? tableOf(columns, queue.tasks) : make('p', {className: 'note', textContent: 'No task was launched yet.'}));
    if (focus) [...body.querySelectorAll('button')].find((button) => button.getAttribute('aria-label') === focus)?.focus();
  }

  return {
    events: '',
    async runs() {
      if (control !== null) return;
      const queue = await ask('queue');
      control = queue.control;
      byId('about').textContent = control ? '' : 'read only: `dtrain board --control` also stops, pauses and activates tasks';
      draw(queue);
    },
    queue(now) { if (control !== null) draw(now); },
  };
}
