// With --control: launch a run again with changed keys, or let it go on, also with another number of slots.

function launchPart(path) {
  const {section, body} = part('Launch again');
  section.hidden = true;
  const keys = make('textarea', {rows: 3, placeholder: 'hyperparameters.learning_rate=0.01', spellcheck: false});
  const slots = make('input', {type: 'number', min: 1, step: 1, placeholder: 'as before'});
  const note = make('p', {className: 'note'});
  note.setAttribute('role', 'status');
  const buttons = [['launch', 'Launch a new run'], ['continue', 'Continue this run']].map(([action, word]) => {
    const button = make('button', {type: 'button', textContent: word});
    button.addEventListener('click', () => act(action));
    return button;
  });
  const goesOn = buttons[1];
  let busy = false, over = false;
  body.append(make('label', {className: 'field'}, 'Changed keys, one KEY=VALUE in each line', keys),
    make('div', {className: 'tools'}, make('label', {}, 'Slots', slots), ...buttons), note);

  function allow() {
    buttons[0].disabled = busy;
    goesOn.disabled = busy || !over;
    goesOn.title = over ? 'from its newest checkpoint' : 'The run is not over: stop its task first';
  }

  async function act(action) {
    const set = keys.value.split('\n').map((line) => line.trim()).filter(Boolean);
    if (slots.value) set.push(`resources.slots_per_trial=${slots.value}`);
    busy = true;
    allow();
    note.className = 'note';
    note.textContent = 'The launch begins …';
    try {
      const answer = await ask(`${path}/${action}`, {method: 'POST', body: JSON.stringify({set})});
      note.textContent = answer.text;
      if (!answer.launched) note.className = 'error';
    } catch (error) {
      note.className = 'error';
      note.textContent = error.message;
    } finally {
      busy = false;
      allow();
    }
  }

  return {
    section,
    refresh(control, ended) {
      section.hidden = !control;
      over = ended;
      allow();
    },
  };
}
