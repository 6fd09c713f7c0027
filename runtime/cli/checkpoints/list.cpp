#include <cstdio>
#include <memory>
#include <set>

#include "checkpoints/selection.h"
#include "commands.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/units.h"
#include "runs/run_command.h"
#include "table.h"

namespace dtrain::cli {
namespace {

struct CheckpointListArguments {
  std::string run;
  bool json = false;
};

Nanoseconds when(const checkpoints::About& about) {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::duration<double>(about.time));
}

struct Marks {
  std::optional<std::int64_t> best, latest;
};

Marks marks_of(const std::vector<checkpoints::Entry>& entries) {
  Marks marks;
  if (const auto best = checkpoints::best_of(entries, 1); !best.empty()) marks.best = best.front().about.step;
  for (const checkpoints::Entry& entry : entries) {
    if (entry.damage.empty()) marks.latest = entry.about.step;
  }
  return marks;
}

Json list_json(const Checkpoints& found) {
  const Marks marks = marks_of(found.entries);
  const SystemClock clock;
  Json list = Json::array();
  for (const checkpoints::Entry& entry : found.entries) {
    Json json = to_json(entry);
    json["age_s"] = entry.about.time > 0 ? Json(to_seconds(clock.wall()) - entry.about.time) : Json();
    json["best"] = marks.best == entry.about.step;
    json["latest"] = marks.latest == entry.about.step;
    list.push_back(std::move(json));
  }
  return list;
}

std::string list_text(const Checkpoints& found) {
  if (found.entries.empty()) return "no checkpoints in " + found.storage.string() + "\n";
  const Marks marks = marks_of(found.entries);
  const SystemClock clock;
  Table table(
      {{"step"}, {"epoch"}, {"saved"}, {"age"}, {"size", Table::Unit::kBytes}, {"metric"}, {"mark"}, {"damage"}},
      ListFormat::kText);
  for (const checkpoints::Entry& entry : found.entries) {
    const bool known = entry.about.time > 0;
    std::vector<std::string_view> mark;
    if (marks.best == entry.about.step) mark.emplace_back("best");
    if (marks.latest == entry.about.step) mark.emplace_back("latest");
    if (!entry.not_finite.empty()) mark.emplace_back("not finite");
    const std::string saved = format_utc(when(entry.about)).substr(0, 19) + "Z";
    const std::string age = format_duration(clock.wall() - when(entry.about));
    const std::string metric = metric_text(entry.about);
    table.add({entry.about.step, known ? Cell(entry.about.epoch + 1) : Cell(), known ? Cell(saved) : Cell(),
               known ? Cell(age) : Cell(), entry.bytes > 0 ? Cell(entry.bytes) : Cell(),
               metric.empty() ? Cell() : Cell(metric), mark.empty() ? Cell() : Cell(mark),
               entry.damage.empty() ? Cell() : Cell(entry.damage)});
  }
  return table.finish();
}

}  // namespace

void add_checkpoint_list(CLI::App& checkpoint, int* exit_code) {
  auto arguments = std::make_shared<CheckpointListArguments>();
  CLI::App* command = checkpoint.add_subcommand("list", "List the checkpoints of a run, the oldest first");
  add_run(*command, arguments->run);
  add_json(*command, arguments->json);
  command->footer(
      "Looks at manifests and sizes only; `dtrain checkpoint verify` reads every byte. The best checkpoint is that "
      "with the best\nsearcher.metric, the latest is what `dtrain launch --continue` goes on from. "
      "Weights of one that is\nnot finite have become NaN or infinite: `dtrain checkpoint describe` names one.");
  command->callback([arguments, exit_code] {
    const Checkpoints found = find_checkpoints(arguments->run);
    print_answer(
        arguments->json, [&] { return list_json(found); }, [&] { return list_text(found); });
    *exit_code = 0;
  });
}

}  // namespace dtrain::cli
