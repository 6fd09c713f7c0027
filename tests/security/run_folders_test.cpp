// The commands of dtrain on folders of runs that a stranger has written: each ends, with little memory, names what it
// cannot read, prints no control character, and shows the other runs.
#include <gmock/gmock.h>

#include <csignal>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <zlib.h>

#include "dtrain/base/file.h"
#include "harness/synthetic_run.h"
#include "run_harness.h"

namespace dtrain {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Result {
  int code;
  std::string out, err;
  std::string all() const { return out + err; }
};

std::string quoted(const std::string& word) {
  return "'" + word + "'";
}

bool has_control_characters(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) return true;
    if (byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) return true;
  }
  return false;
}

// The records of a run that a real launch and real ranks have written, with the dumps of a larger one.
class Recorded {
 public:
  Recorded() {
    Command launch = run_.launch();
    EXPECT_EQ(launch.wait().code, 0) << launch.err();
    fs::remove_all(run_.run_dir() / "profile");
    test::write_synthetic_run(folder_.path(), {.steps = 50});
    fs::copy(folder_ / "profile", run_.run_dir() / "profile", fs::copy_options::recursive);
    std::ofstream(run_.run_dir() / "metrics.jsonl")
        << R"({"time":"2026-03-01T12:00:00Z","kind":"training","batch":10,"samples":640,"optimizer_steps":10,)"
           R"("learning_rate":0.1,"gradient_norm":1.5,"metrics":{"loss":0.5}})"
           "\n"
           R"({"time":"2026-03-01T12:00:01Z","kind":"validation","batch":10,"metrics":{"loss":0.6}})"
           "\n";
  }
  fs::path path() const { return run_.run_dir(); }

 private:
  TestRun run_{Settings{.slots = 2, .batches = 20}};
  TemporaryFolder folder_;
};

class RunFolders : public testing::Test {
 protected:
  static void SetUpTestSuite() { recorded_ = new Recorded; }
  static void TearDownTestSuite() { delete std::exchange(recorded_, nullptr); }

  fs::path runs() const { return folder_ / "runs"; }
  // A copy of the recorded run.
  fs::path add(const std::string& name) const {
    fs::create_directories(runs());
    fs::copy(recorded_->path(), runs() / name, fs::copy_options::recursive | fs::copy_options::skip_symlinks);
    return runs() / name;
  }
  void add_good() const { add("0001-good"); }

  // With at most 1.5 GB of address space, of which a sanitizer takes terabytes.
  Result dtrain(const std::vector<std::string>& arguments) const {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    std::string command = "exec " + bin("dtrain");
#else
    std::string command = "ulimit -v 1500000; exec " + bin("dtrain");
#endif
    for (const std::string& argument : arguments) command += " " + quoted(argument);
    Command process(folder_.path(), {"/bin/sh", "-c", command});
    const ExitStatus status = process.wait();
    EXPECT_EQ(status.signal, 0) << command << "\n" << process.err();
    const Result result{status.code, process.out(), process.err()};
    EXPECT_FALSE(has_control_characters(result.all())) << command << "\n" << result.all();
    EXPECT_THAT(result.all(), Not(HasSubstr("json.exception"))) << command;
    EXPECT_THAT(result.err, Not(HasSubstr("terminate"))) << command;
    EXPECT_THAT(result.code, testing::AnyOf(0, 1, 2)) << command << "\n" << result.err;
    return result;
  }

  // Every command that reads a run, on this one.
  std::vector<std::vector<std::string>> commands_of(const std::string& run) const {
    const std::string out = (folder_ / "out").string();
    return {{"summary", run},
            {"summary", run, "--json"},
            {"top", run, "--once"},
            {"top", run, "--once", "--json"},
            {"analyze", run},
            {"analyze", run, "--json"},
            {"what-if", run},
            {"report", run, "-o", out + ".html"},
            {"trace", run, "-o", out + ".json.gz"},
            {"trace", run, "--hta", out + "-hta"},
            {"trace", run, "--now"},
            {"export", run, "--format", "csv", "-o", out + "-csv"},
            {"export", run, "--format", "sqlite", "-o", out + ".db"},
            {"export", run, "--format", "tensorboard", "-o", out + "-tb"},
            {"diff", "runs/0001-good", run},
            {"report", "runs/0001-good", run, "-o", out + "2.html"},
            {"logs", run},
            {"checkpoint", "list", run},
            {"checkpoint", "describe", run},
            {"checkpoint", "verify", run},
            {"checkpoint", "delete", run, "--after", "0", "--yes"},
            {"checkpoint", "export", run, "-o", out + ".safetensors"}};
  }
  void all_commands_end(const std::string& run) const {
    for (const auto& command : commands_of(run)) dtrain(command);
  }

  // What `dtrain runs` says of each run's damage, by the run's folder.
  std::map<std::string, std::string> damage() const {
    const Result result = dtrain({"runs", "--json"});
    std::map<std::string, std::string> all;
    bool any = false;
    for (const Json& run : Json::parse(result.out)) {
      const Json& one = run["damage"];
      all[fs::path(run["folder"].get<std::string>()).filename()] = one.is_null() ? "" : one.get<std::string>();
      any |= !one.is_null();
    }
    EXPECT_EQ(result.code, any ? 1 : 0);
    const Result table = dtrain({"runs"});
    EXPECT_EQ(table.code, any ? 1 : 0);
    EXPECT_EQ(std::count(table.out.begin(), table.out.end(), '\n'), std::ssize(all) + 1);
    return all;
  }

  static Recorded* recorded_;
  TemporaryFolder folder_;
};

Recorded* RunFolders::recorded_ = nullptr;

void write(const fs::path& file, const std::string& text) {
  fs::remove(file);
  std::ofstream(file, std::ios::binary) << text;
}

std::vector<Json> lines_of(const fs::path& file) {
  std::vector<Json> lines;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

void write_lines(const fs::path& file, const std::vector<Json>& lines) {
  std::string text;
  for (const Json& line : lines) text += line.dump() + "\n";
  write(file, text);
}

const std::vector<Json>& values_of_all_types() {
  static const std::vector<Json> kValues = {
      nullptr, true, -7, 1e300, "\x1b[31mtext", Json::array({1, "x"}), Json::object({{"a", 1}})};
  return kValues;
}

std::string type_of(const Json& value) {
  return value.is_number_float() ? "float" : value.type_name();
}

TEST_F(RunFolders, ARecordedRunHasNoDamage) {
  add_good();
  const auto found = damage();
  EXPECT_EQ(found.at("0001-good"), "");
  EXPECT_EQ(dtrain({"summary", "runs/0001-good"}).code, 0);
}

// One run for each member of each kind of line, and each other type that it may have.
TEST_F(RunFolders, AMemberOfAnyTypeInTheEventsMarksItsRun) {
  add_good();
  const auto lines = lines_of(recorded_->path() / "events.jsonl");
  const std::set<std::string> unread = {"task", "cpus", "world_size", "name", "version", "remedy", "because_of_rank"};
  std::set<std::pair<std::string, std::string>> seen;
  std::map<std::string, std::string> expected;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const auto& [key, value] : lines[i].items()) {
      if (!seen.emplace(lines[i]["event"].get<std::string>(), key).second) continue;
      for (const Json& other : values_of_all_types()) {
        if (type_of(other) == type_of(value)) continue;
        if (value.is_number_float() && other.is_number()) continue;
        const std::string name = std::to_string(expected.size() + 2) + "-bad";
        fs::create_directories(runs() / name);
        auto changed = lines;
        changed[i][key] = other;
        write_lines(runs() / name / "events.jsonl", changed);
        expected[name] = unread.contains(key) ? "" : "events.jsonl:" + std::to_string(i + 1) + ": \"" + key + "\" is ";
      }
    }
  }
  ASSERT_GT(expected.size(), 100u);
  const auto found = damage();
  EXPECT_EQ(found.at("0001-good"), "");
  EXPECT_EQ(found.size(), expected.size() + 1);
  for (const auto& [run, text] : expected) {
    if (text.empty()) continue;
    EXPECT_THAT(found.at(run), testing::StartsWith(text)) << slurp(runs() / run / "events.jsonl");
  }
}

TEST_F(RunFolders, AllEventsOfAWrongTypeEndNoCommand) {
  add_good();
  int number = 2;
  for (const Json& other : values_of_all_types()) {
    const fs::path run = add(std::to_string(number++) + "-bad");
    for (const char* file : {"events.jsonl", "metrics.jsonl"}) {
      auto lines = lines_of(run / file);
      for (Json& line : lines) {
        for (auto& [key, value] : line.items()) {
          if (key != "event" && key != "kind") value = other;
        }
      }
      write_lines(run / file, lines);
    }
    all_commands_end(run.lexically_relative(folder_.path()));
  }
  EXPECT_EQ(damage().size(), values_of_all_types().size() + 1);
}

// Calls `change` with the path of each member below `json`, which it may set and set back.
void each_member(Json& root, const Json::json_pointer& at,
                 const std::function<void(const Json::json_pointer&)>& change) {
  const Json here = root[at];
  if (!here.is_object()) return;
  for (const auto& [key, value] : here.items()) {
    const Json::json_pointer below = at / key;
    change(below);
    each_member(root, below, change);
  }
}

TEST_F(RunFolders, AMemberOfAnyTypeInThePlanEndsNoCommand) {
  add_good();
  Json plan = Json::parse(slurp(recorded_->path() / "plan.json"));
  int number = 1;
  std::map<std::string, std::string> expected;
  const std::set<std::string> read = {"/name",  "/world_size", "/experiment", "/experiment/searcher",
                                      "/ranks", "/length"};
  each_member(plan, Json::json_pointer(), [&](const Json::json_pointer& at) {
    const Json before = plan[at];
    for (const Json& other : values_of_all_types()) {
      if (type_of(other) == type_of(before)) continue;
      const std::string name = std::to_string(++number) + "-bad";
      fs::create_directories(runs() / name);
      fs::copy(recorded_->path() / "events.jsonl", runs() / name / "events.jsonl");
      plan[at] = other;
      write(runs() / name / "plan.json", plan.dump());
      if (read.contains(at.to_string())) expected[name] = at.to_string();
    }
    plan[at] = before;
  });
  ASSERT_GT(number, 200);
  const auto found = damage();
  EXPECT_EQ(std::ssize(found), number);
  for (const auto& [run, member] : expected)
    EXPECT_THAT(found.at(run), HasSubstr("plan.json: \"")) << run << " " << member;
  // The commands for one run, on those whose members at the top have another type.
  int turn = 0;
  for (auto& [key, value] : plan.items()) {
    const Json before = value;
    for (const Json& other : values_of_all_types()) {
      const fs::path run = runs() / "0001-good";
      value = other;
      write(run / "plan.json", plan.dump());
      const auto commands = commands_of("runs/0001-good");
      dtrain(commands[0]);
      dtrain(commands[2]);
      dtrain(commands[5 + static_cast<std::size_t>(turn++) % (commands.size() - 5)]);
    }
    value = before;
  }
}

TEST_F(RunFolders, SpecialFilesAreNamedAndNotWaitedFor) {
  add_good();
  const auto make = [&](const std::string& name, const std::function<void(const fs::path&)>& special) {
    const fs::path run = add(name);
    for (const char* file : {"plan.json", "metrics.jsonl", "profile/rank-0000.jsonl", "profile/agent-node0.jsonl",
                             "profile/operators-rank-0000.json", "profile/kernels-rank-0000.json",
                             "profile/trace-rank-0000.json.gz", "logs/rank-0000.log", "checkpoints/storage.json"}) {
      fs::create_directories((run / file).parent_path());
      fs::remove(run / file);
      special(run / file);
    }
    const std::string relative = run.lexically_relative(folder_.path());
    all_commands_end(relative);
    EXPECT_THAT(dtrain({"summary", relative}).all(), HasSubstr("plan.json is"));
    EXPECT_THAT(dtrain({"top", relative, "--once"}).all(), HasSubstr("metrics.jsonl is"));
    fs::remove(run / "events.jsonl");
    special(run / "events.jsonl");
    all_commands_end(relative);
  };
  make("0002-pipe", [](const fs::path& path) { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); });
  make("0003-device", [](const fs::path& path) { fs::create_symlink("/dev/zero", path); });
  make("0004-socket", [](const fs::path& path) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    const fs::path before = fs::current_path();
    fs::current_path(path.parent_path());  // the address is short
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path.filename().string().copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    fs::current_path(before);
  });
  make("0005-folder", [](const fs::path& path) { fs::create_directory(path); });
  const auto found = damage();
  EXPECT_EQ(found.size(), 5u);
  EXPECT_THAT(found.at("0002-pipe"), HasSubstr("plan.json is a pipe, not a file"));
  EXPECT_THAT(found.at("0003-device"), HasSubstr("is a device"));
  EXPECT_THAT(found.at("0004-socket"), HasSubstr("is a socket"));
  EXPECT_EQ(found.at("0001-good"), "");
}

TEST_F(RunFolders, OutputInThePlaceOfAPipeIsNotWaitedFor) {
  const fs::path run = add("0001-good");
  fs::remove(run / "report.html");
  ASSERT_EQ(::mkfifo((run / "report.html").c_str(), 0600), 0);
  EXPECT_EQ(dtrain({"report", "runs/0001-good"}).code, 1);
}

TEST_F(RunFolders, ASparseFileOf60GbIsNamed) {
  add_good();
  for (const std::string file :
       {"events.jsonl", "metrics.jsonl", "plan.json", "profile/rank-0000.jsonl", "profile/trace-rank-0000.json.gz",
        "profile/operators-rank-0000.json", "profile/kernels-rank-0000.json"}) {
    const std::string name = std::to_string(damage().size() + 1) + "-sparse";
    const fs::path run = add(name);
    if (!fs::exists(run / file)) std::ofstream(run / file).flush();
    fs::resize_file(run / file, 60ull << 30);
    all_commands_end("runs/" + name);
    const std::string base = fs::path(file).filename();
    if (file.starts_with("profile/trace")) {
      EXPECT_THAT(dtrain({"trace", "runs/" + name, "-o", (folder_ / "t.json.gz").string()}).err, HasSubstr(base));
    } else {
      EXPECT_THAT(dtrain({"summary", "runs/" + name}).out, HasSubstr(base));
    }
    if (!file.starts_with("profile")) {
      EXPECT_THAT(damage().at(name), HasSubstr(base));
    }
  }
}

TEST_F(RunFolders, LongLinesAndManyKeysAreNamed) {
  add_good();
  std::string keys = R"({"time":"2026-03-01T12:00:00Z","event":"x","kind":"training","batch":1,"metrics":{)";
  for (int i = 0; i < 100'000; ++i) keys += "\"k" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  keys.back() = '}';
  keys += "}\n";
  const std::string no_newline(100 << 20, 'x');
  int number = 2;
  for (const std::string file : {"events.jsonl", "metrics.jsonl", "plan.json", "profile/rank-0000.jsonl"}) {
    for (const std::string* content : {static_cast<const std::string*>(&keys), &no_newline}) {
      const std::string name = std::to_string(number++) + "-long";
      const fs::path run = add(name);
      if (file.ends_with(".jsonl")) {
        std::ofstream(run / file, std::ios::app) << *content;
      } else {
        write(run / file, *content);
      }
      all_commands_end("runs/" + name);
      if (!file.starts_with("profile")) {
        EXPECT_THAT(damage().at(name), HasSubstr(fs::path(file).filename().string()));
      } else if (content == &no_newline) {
        EXPECT_THAT(dtrain({"summary", "runs/" + name}).out, HasSubstr("rank-0000.jsonl"));
      }
    }
  }
}

// A gzip file of several members that unpacks to `beginning` and 8 GB of spaces.
std::string bomb(const std::string& beginning) {
  const auto pack = [](const std::string& text) {
    z_stream stream{};
    EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    std::string packed(deflateBound(&stream, text.size()), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_out = static_cast<uInt>(packed.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    packed.resize(stream.total_out);
    deflateEnd(&stream);
    return packed;
  };
  const std::string spaces = pack(std::string(64 << 20, ' '));
  std::string file = pack(beginning);
  for (int i = 0; i < 128; ++i) file += spaces;
  return file;
}

TEST_F(RunFolders, ATraceThatUnpacksTo8GbIsNamed) {
  const fs::path run = add("0001-good");
  write(run / "profile/trace-rank-0000.json.gz",
        bomb(R"({"dtrain":{"schema":1,"rank":0,"world_size":1,"clock":[{"trace_ns":1,"monotonic_ns":1,"error_ns":0}]},)"
             "\n\"traceEvents\":["));
  const Result result = dtrain({"trace", "runs/0001-good", "-o", (folder_ / "t.json.gz").string()});
  EXPECT_THAT(result.err, HasSubstr("trace-rank-0000.json.gz unpacks to more than"));
  all_commands_end("runs/0001-good");
}

TEST_F(RunFolders, CommandsForATerminalAreShownAsText) {
  const std::string evil =
      "\x1b]0;owned\x07\x1b[2J\x7f\xc2\x9b"
      "31m\u202eX";
  const fs::path run = add("0001-good");
  Json plan = Json::parse(slurp(run / "plan.json"));
  plan["name"] = evil;
  plan["started_by"] = evil;
  plan["experiment"]["name"] = evil;
  plan["experiment"]["searcher"]["metric"] = evil;
  plan["experiment"]["hyperparameters"][evil] = evil;
  plan["warnings"] = {evil};
  write(run / "plan.json", plan.dump());
  auto events = lines_of(run / "events.jsonl");
  for (Json& event : events) {
    for (const char* key : {"host", "cause", "reason", "agent", "status", "path", "signal", "state"}) event[key] = evil;
  }
  events.push_back({{"event", "attempt_started"}, {"attempt", 2}});
  events.push_back({{"event", "attempt_failed"}, {"cause", evil}});
  events.push_back({{"event", "checkpoint_saved"}, {"step", 5}, {"path", evil}, {"metric", evil}});
  events.push_back({{"event", "agent_ended"}, {"agent", evil}, {"status", evil}});
  events.push_back({{"event", "run_ended"}, {"state", evil}, {"cause", evil}, {"exit_code", 1}});
  write_lines(run / "events.jsonl", events);
  write(run / "metrics.jsonl", Json({{"kind", "validation"}, {"batch", 5}, {"metrics", {{evil, 1}}}}).dump() + "\n");
  for (const auto& entry : fs::directory_iterator(run / "profile")) {
    if (entry.path().extension() != ".jsonl") continue;
    auto lines = lines_of(entry.path());
    for (const char* key : {"host", "agent"}) lines[0][key] = evil;
    lines.push_back({{"record", "end"}, {"how", evil}});
    write_lines(entry.path(), lines);
  }
  write(run / "logs" / "rank-0000.log", evil + "\n");
  all_commands_end("runs/0001-good");
  const Result listed = dtrain({"runs"});
  EXPECT_THAT(listed.out, HasSubstr(R"(\u001b]0;owned)"));
  EXPECT_EQ(Json::parse(dtrain({"runs", "--json"}).out)[0]["name"], evil) << "JSON keeps its meaning";
  EXPECT_THAT(dtrain({"logs", "runs/0001-good", "--rank", "0"}).out, HasSubstr(R"(\u001b[2J\u007f\u009b31m)"));
  Command raw(folder_.path(), {bin("dtrain"), "logs", "runs/0001-good", "--rank", "0", "--raw"});
  EXPECT_EQ(raw.wait().code, 0);
  EXPECT_EQ(raw.out(), evil + "\n");
  fs::rename(run, runs() / ("0001-" + evil));
  dtrain({"runs"});
  dtrain({"summary", "1"});
  dtrain({"summary", "runs/nothing\x1b[2J"});
}

// A process that is no rank of the run, handles SIGUSR2 and is told by the events to be rank 0.
TEST_F(RunFolders, NoOtherProcessGetsTheSignalOfATrace) {
  const fs::path run = add("0001-good");
  const fs::path told = folder_ / "told";
  Command victim(folder_.path(), {"/bin/sh", "-c",
                                  "trap 'echo hit >" + told.string() + "' USR2; echo up; while :; do sleep 0.1; done"});
  ASSERT_TRUE(eventually([&] { return victim.says("up"); }));
  const pid_t pid = victim.process().pid();
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(stat, text);
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 0; i < 20; ++i) fields >> field;
  const std::uint64_t ticks = std::stoull(field);
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  for (const Json& started : {Json(ticks), Json()}) {
    Json event = {{"event", "rank_started"}, {"rank", 0}, {"pid", pid}, {"host", host}};
    if (!started.is_null()) event["start_ticks"] = started;
    write_lines(run / "events.jsonl", {{{"event", "attempt_started"}, {"attempt", 1}}, event});
    const Result result = dtrain({"trace", "runs/0001-good", "--now"});
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(started.is_null() ? "is not there any more" : "is no rank of the run"));
  }
  EXPECT_FALSE(fs::exists(told));
  victim.kill(SIGKILL);
}

}  // namespace
}  // namespace dtrain
