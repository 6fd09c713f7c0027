// Tables sorted by a click (or a key) on a column's head: numbers largest first, text from A to Z, and back.

function sortTable(table, column, ascending) {
  const body = table.tBodies[0];
  const value = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  };
  const order = (a, b) => {
    const [one, two] = [value(a), value(b)];
    if (typeof one === 'number' && typeof two === 'number') return one - two;
    if (typeof one !== typeof two) return typeof one === 'number' ? 1 : -1;
    return one.localeCompare(two, 'en', {numeric: true});
  };
  const rows = [...body.rows].sort(order);
  if (!ascending) rows.reverse();
  body.append(...rows);
}

function prepareTable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = make('button', {type: 'button', textContent: head.textContent});
    head.replaceChildren(button);
    button.addEventListener('click', () => {
      const now = head.getAttribute('aria-sort');
      const ascending = now ? now === 'descending' : !head.classList.contains('number');
      for (const other of heads) other.removeAttribute('aria-sort');
      head.setAttribute('aria-sort', ascending ? 'ascending' : 'descending');
      sortTable(table, column, ascending);
      say(`${table.caption.textContent}: sorted by ${button.textContent}, ${ascending ? 'smallest' : 'largest'} first`);
    });
  });
}
