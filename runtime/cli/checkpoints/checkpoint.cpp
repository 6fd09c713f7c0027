#include "commands.h"

#include <cstdio>
#include <memory>
#include <set>

#include "checkpoints/selection.h"
#include "dtrain/base/clock.h"
#include "dtrain/base/error.h"
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

void add_checkpoint_list(CLI::App& checkpoint) {
  auto arguments = std::make_shared<CheckpointListArguments>();
  CLI::App* command = checkpoint.add_subcommand("list", "List the checkpoints of a run, the oldest first");
  add_run(*command, arguments->run);
  add_json(*command, arguments->json);
  command->footer(
      "Looks at manifests and sizes only; `dtrain checkpoint verify` reads every byte. The best checkpoint is that "
      "with the best\nsearcher.metric, the latest is what `dtrain launch --continue` goes on from. "
      "Weights of one that is\nnot finite have become NaN or infinite: `dtrain checkpoint describe` names one.");
  command->callback([arguments] {
    const Checkpoints found = find_checkpoints(arguments->run);
    print_answer(
        arguments->json, [&] { return list_json(found); }, [&] { return list_text(found); });
  });
}

struct VerifyArguments {
  std::string run, step;
  bool json = false;
};

void add_checkpoint_verify(CLI::App& checkpoint, ExitCode* exit_code) {
  auto arguments = std::make_shared<VerifyArguments>();
  CLI::App* command = checkpoint.add_subcommand(
      "verify", "Read every byte of checkpoints and compare it with the checksums; exit code 1 where one is damaged");
  add_run_or_checkpoint(*command, arguments->run);
  command->add_option("STEP", arguments->step, std::string(kStepHelp) + " (default: all of the run)");
  add_json(*command, arguments->json);
  command->callback([arguments, exit_code] {
    const Checkpoints found = find_checkpoints(arguments->run);
    std::vector<checkpoints::Entry> wanted = found.entries;
    if (!arguments->step.empty()) wanted = {choose(found, arguments->step)};
    if (wanted.empty()) throw ConfigError("there are no checkpoints in " + found.storage.string());
    Json answer = Json::array();
    bool damaged = false;
    for (const checkpoints::Entry& entry : wanted) {
      const auto problems = verify_visibly(entry);
      damaged |= !problems.empty();
      answer.push_back({{"step", entry.about.step}, {"path", entry.path.string()}, {"problems", problems}});
      if (arguments->json) continue;
      const std::string what =
          problems.empty() ? "whole, " + format_bytes(static_cast<double>(entry.bytes)) : "DAMAGED";
      std::printf("%s: %s\n", step_text(entry).c_str(), what.c_str());
      for (const std::string& problem : problems) std::printf("  %s\n", problem.c_str());
    }
    if (arguments->json) std::printf("%s\n", to_line(answer).c_str());
    *exit_code = damaged ? ExitCode::kRunFailed : ExitCode::kDone;
  });
}

}  // namespace

void add_checkpoint(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command = app.add_subcommand("checkpoint", "List, check, delete and export the checkpoints of a run");
  command->require_subcommand(1);
  add_checkpoint_list(*command);
  add_checkpoint_describe(*command);
  add_checkpoint_verify(*command, exit_code);
  add_checkpoint_delete(*command);
  add_checkpoint_export(*command, exit_code);
  command->footer(R"(examples:
  dtrain checkpoint list 7                     which checkpoints does run 0007 have, and which is the best?
  dtrain checkpoint describe 7 best            what is in the best one?
  dtrain checkpoint verify 7                   is every byte of every checkpoint as it was written?
  dtrain checkpoint export 7 --best --output model.safetensors   the best weights, for other programs
  dtrain checkpoint delete 7 120 140           free the space of two of them)");
}

}  // namespace dtrain::cli
