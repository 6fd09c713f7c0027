// Every command ends with exit code 1 where what it prints cannot be written, and quietly where the reader has gone.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "../checkpoint/checkpoint_harness.h"
#include "cli_harness.h"

namespace dtrain {
namespace {

using testing::HasSubstr;

// What `shell` makes of "$@", which is dtrain with these arguments.
Result dtrain_through(const std::string& shell, const TestRun& run, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"/bin/bash", "-c", shell, "bash", bin("dtrain")});
  Command command(run.folder(), arguments);
  const ExitStatus status = command.wait();
  EXPECT_EQ(status.signal, 0);
  return {status.code, command.out(), command.err()};
}

// "task list" and the like, of --help and of that of the commands that have commands.
std::set<std::string> all_commands(const TestRun& run, const std::vector<std::string>& parent = {}) {
  std::vector<std::string> words = parent;
  words.emplace_back("--help");
  std::istringstream help(dtrain(run, words).out);
  std::set<std::string> found;
  bool in_list = false;
  for (std::string line; std::getline(help, line);) {
    if (!line.starts_with("  ")) in_list = line == "Subcommands:";
    if (!in_list || !line.starts_with("  ") || line[2] == ' ') continue;
    std::vector<std::string> path = parent;
    path.push_back(line.substr(2, line.find(' ', 2) - 2));
    const auto below = all_commands(run, path);
    std::string name;
    for (const std::string& word : path) name += (name.empty() ? "" : " ") + word;
    below.empty() ? static_cast<void>(found.insert(name)) : found.insert(below.begin(), below.end());
  }
  return found;
}

using Words = std::vector<std::string>;

// A PNG file of one grey pixel.
std::string one_pixel() {
  return {
      "\211\120\116\107\015\012\032\012\000\000\000\015\111\110\104\122\000\000\000\001\000\000\000\001"
      "\010\000\000\000\000\072\176\233\125\000\000\000\012\111\104\101\124\170\234\143\150\000\000\000"
      "\202\000\201\167\315\162\266\000\000\000\000\111\105\116\104\256\102\140\202",
      67};
}

// One of each command, with a run "./run" and an older one "./before".
std::vector<Words> one_of_each() {
  return {{"launch", "experiment.yaml", "--dry-run"},
          {"launch", "experiment.yaml", "--dry-run", "--json"},
          {"run", "--dry-run", "train.py"},
          {"config", "check", "experiment.yaml"},
          {"config", "schema", "experiment"},  // more than a buffer of stdio
          {"agent", "list"},
          {"slot", "list"},
          {"slot", "list", "--json"},
          {"task", "list"},
          {"task", "list", "--csv"},
          {"task", "show", "1"},
          {"task", "kill", "1"},
          {"task", "pause", "1"},
          {"task", "activate", "1"},
          {"task", "resize", "1", "--slots", "1"},
          {"task", "wait", "1"},
          {"checkpoint", "list", "./run"},
          {"checkpoint", "list", "./run", "--json"},
          {"checkpoint", "describe", "./run"},
          {"checkpoint", "verify", "./run"},
          {"checkpoint", "delete", "./run", "7", "--yes", "--force"},
          {"checkpoint", "export", "./run", "-o", "model.safetensors", "--force"},
          {"data", "pack", "pictures", "-o", "shards", "--force"},
          {"data", "inspect", "pictures"},
          {"data", "inspect", "pictures", "--json"},
          {"data", "bench", "pictures", "--seconds", "0.05", "--workers", "1"},
          {"data", "show", "pictures"},
          {"logs", "./run"},
          {"logs", "./run", "--follow"},
          {"top", "./run", "--once"},
          {"top", "./run", "--once", "--json"},
          {"summary", "./run"},
          {"summary", "./run", "--json"},
          {"report", "./run"},
          {"report", "./before", "./run"},
          {"runs", "."},
          {"runs", ".", "--csv"},
          {"runs", ".", "--json"},
          {"analyze", "./run"},
          {"analyze", "./run", "--json"},
          {"what-if", "./run"},
          {"diff", "./before", "./run"},
          {"diff", "./before", "./run", "--json"},
          {"trace", "./run"},
          {"trace", "./run", "--json"},
          {"export", "./run", "--format", "csv"},
          {"export", "./run", "--format", "sqlite"},
          {"export", "./run", "--format", "tensorboard"},
          {"doctor"},
          {"doctor", "--json"},
          {"completion", "bash"},
          {"completion", "zsh"},
          {"version"},
          {"man"},
          {"--help"},
          {"launch", "--help"}};
}

class StandardOutput : public testing::Test {
 protected:
  StandardOutput() {
    std::ofstream(run_.folder() / "train.py") << "import dtrain\n";
    std::filesystem::create_directories(run_.folder() / "pictures" / "grey");
    std::ofstream(run_.folder() / "pictures" / "grey" / "a.png", std::ios::binary) << one_pixel();
    EXPECT_EQ(run_.launch().wait().code, 0);
    EXPECT_EQ(dtrain(run_, {"launch", run_.experiment(), "--run-dir", "before"}).code, 0);
  }
  // A command may delete the run's checkpoint.
  void put_checkpoint_back() {
    const std::string header = "{}      ";
    const std::uint64_t length = header.size();
    checkpoints::write_checkpoint(
        run_.folder() / "run" / "checkpoints", checkpoints::about_step(7),
        {{"model.safetensors", std::string(reinterpret_cast<const char*>(&length), sizeof length) + header}});
  }
  TestRun run_{{.batches = 40}};
};

std::string text_of(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += " " + word;
  return "dtrain" + text;
}

TEST_F(StandardOutput, OnAFullDiskEveryCommandFails) {
  std::set<std::string> not_tried = all_commands(run_);
  EXPECT_TRUE(not_tried.contains("task list")) << "the help is read wrongly";
  not_tried.erase("board");     // serves until it is ended: tests/board/board.py
  not_tried.erase("follow");    // becomes a process in Python: tests/trackers/follow.py
  not_tried.erase("evaluate");  // need a program that trains: tests/python/evaluate.py
  not_tried.erase("predict");
  not_tried.erase("model inspect");  // needs a file of torch.export: tests/integration/exported_runs.py
  for (const Words& words : one_of_each()) {
    std::erase_if(not_tried,
                  [&](const std::string& name) { return (text_of(words) + " ").starts_with("dtrain " + name + " "); });
    put_checkpoint_back();
    const Result good = dtrain(run_, words);
    const bool doctor = words.front() == "doctor";  // what it thinks of this machine is another matter
    if (!doctor) {
      EXPECT_EQ(good.code, 0) << text_of(words) << ": " << good.err;
    }
    EXPECT_NE(good.out, "") << text_of(words);
    put_checkpoint_back();
    const Result full = dtrain_through("exec \"$@\" > /dev/full", run_, words);
    EXPECT_EQ(full.code, 1) << text_of(words);
    EXPECT_THAT(full.err, HasSubstr("dtrain: not everything could be written to standard output")) << text_of(words);
  }
  EXPECT_THAT(not_tried, testing::IsEmpty());
}

TEST_F(StandardOutput, AReaderThatHasGoneIsNoError) {
  // SIGPIPE is ignored where a service manager started us, so that the write itself fails.
  const std::string to_nobody = "trap '' PIPE; exec 3> >(true); wait $!; exec \"$@\" >&3";
  for (const Words& words : one_of_each()) {
    if (words.front() == "doctor") continue;
    put_checkpoint_back();
    const Result gone = dtrain_through(to_nobody, run_, words);
    EXPECT_EQ(gone.code, 0) << text_of(words);
    EXPECT_THAT(gone.err, testing::Not(HasSubstr("standard output"))) << text_of(words);
  }
}

TEST_F(StandardOutput, ALaunchEndsAsItsRanksDo) {
  const Result launch =
      dtrain_through("exec \"$@\" > /dev/full", run_, {"launch", "experiment.yaml", "--run-dir", "another"});
  EXPECT_EQ(launch.code, 0) << launch.err;
  EXPECT_THAT(launch.err, HasSubstr("dtrain: warning: not everything could be written to standard output"));
  EXPECT_THAT(slurp(run_.folder() / "another" / "events.jsonl"), HasSubstr("\"run_ended\""));
}

}  // namespace
}  // namespace dtrain
