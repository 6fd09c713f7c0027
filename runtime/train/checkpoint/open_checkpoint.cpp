#include "checkpoint/open_checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/version.h>

#include "checkpoint/checkpoint_hosts.h"
#include "checkpoint/state_reader.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/comm/communicator.h"
#include "dtrain/config/experiment.h"
#include "dtrain/run/version.h"
#include "numerics/matmul_path.h"

namespace dtrain::train {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kPiece = 64u << 20;  // bytes of a file that are sent at once

// Sends a file of rank 0 to all ranks; `receives` ranks write it.
void send_file(run::RankSession& session, const fs::path& from, const fs::path& to, std::size_t bytes, bool receives) {
  std::ifstream read;
  if (session.world().rank == 0) read.open(from, std::ios::binary);
  std::ofstream written;
  if (receives) written.open(to, std::ios::binary);
  std::string piece(std::min(bytes, kPiece), '\0');
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    const std::size_t size = std::min(kPiece, bytes - at);
    if (read.is_open() && !read.read(piece.data(), static_cast<std::streamsize>(size))) {
      throw SystemError("cannot read " + from.string(), errno);
    }
    session.communicator().broadcast(piece.data(), size, comm::DataType::kUint8, 0).wait();
    if (receives) written.write(piece.data(), static_cast<std::streamsize>(size));
  }
  if (receives && !written.flush()) throw SystemError("cannot write " + to.string(), errno);
}

std::string metric_text(const config::Searcher& searcher) {
  if (searcher.metric.empty()) return "none";
  return searcher.metric + (searcher.smaller_is_better ? ", smaller is better" : ", larger is better");
}

// Adds the file's checksum to the name, unless the file cannot be read any more (it has been replaced).
std::string with_checksum(const std::string& name, const fs::path& file) {
  try {
    return name + " with the checksum " + checkpoints::checksum_of_file(file);
  } catch (const SystemError&) {
    return name;
  }
}

// Returns the program that computes: the trial's program, or the model's files.
std::string program_text(const std::optional<config::ModelJob>& job) {
  if (!job) {
    std::error_code code;
    const fs::path own = "/proc/self/exe";
    return with_checksum(fs::read_symlink(own, code).filename(), own);
  }
  std::vector<std::string> texts;
  for (const config::ModelFile& file : config::files_of(*job)) {
    texts.push_back(with_checksum(file.path.filename(), file.path));
  }
  return join(texts, ", ");
}

std::string absolute_text(const fs::path& path) {
  return fs::absolute(path).lexically_normal().string();
}

}  // namespace

OpenCheckpoint::OpenCheckpoint(run::RankSession& session, const fs::path& checkpoint) : folder_(checkpoint) {
  std::error_code code;
  const bool seen = fs::exists(folder_, code);
  const auto answers = session.control().gather("train/resume-seen", seen ? "yes" : "no");
  if (std::all_of(answers.begin(), answers.end(), [](const std::string& answer) { return answer == "yes"; })) return;
  if (answers.front() != "yes") {
    throw Error("rank 0 does not see the checkpoint " + folder_.string(), "launch from the host that has it");
  }
  const CheckpointHosts hosts = find_checkpoint_hosts(session.control(), folder_.parent_path());
  const bool receives = hosts.is_leader() && !seen;
  Json files = Json::object();
  if (session.world().rank == 0) {
    for (const auto& entry : fs::directory_iterator(folder_)) {
      files[entry.path().filename().string()] = entry.file_size();
    }
    session.control().set("train/resume-files", files.dump());
  }
  files = Json::parse(session.control().get("train/resume-files"));
  const std::string key = "train/resume-folder-" + std::to_string(hosts.host);
  if (hosts.is_leader()) {
    const fs::path made = seen ? folder_ : fs::temp_directory_path() / ("dtrain-checkpoint-" + random_hex(8));
    if (!seen) {
      make_folder(made);
      temporary_ = made;
    }
    session.control().set(key, made.string());
  }
  const fs::path local = session.control().get(key);
  for (const auto& [name, bytes] : files.items()) {
    send_file(session, folder_ / name, local / name, bytes.get<std::size_t>(), receives);
  }
  session.control().barrier("train/resume-received");
  folder_ = local;
}

OpenCheckpoint::~OpenCheckpoint() {
  std::error_code code;
  if (!temporary_.empty()) fs::remove_all(temporary_, code);
}

Json facts_for_resume(run::RankSession& session, const BatchSource& data, const std::string& trial) {
  constexpr const char* kKey = "train/resume-facts";
  if (session.world().rank == 0) {
    const config::Experiment& experiment = session.experiment();
    const auto& job = experiment.model;
    const auto samples = data.samples_per_epoch();
    Json facts = {{"name", experiment.name},
                  {"model", job ? Json(absolute_text(job->file)) : Json()},
                  {"program", program_text(job)},
                  {"trial", trial},
                  {"global_batch_size", experiment.global_batch_size},
                  {"samples_per_epoch", samples ? Json(*samples) : Json()},
                  {"metric", metric_text(experiment.searcher)},
                  {"seed", experiment.experiment_seed},
                  {"dtrain", run::version()},
                  {"libtorch", TORCH_VERSION},
                  {"cpu_capability", at::get_cpu_capability()},
                  {"threads", at::get_num_threads()},
                  {"device", session.gpu() ? "cuda" : "cpu"}};
    if (job && !job->eval_file.empty()) facts["eval_model"] = absolute_text(job->eval_file);
    // The path has been chosen when the process began.
    if (!session.gpu()) facts["matmul"] = profile::to_string(choose_matmul(experiment.optimizations.matmul).path);
    session.control().set(kKey, facts.dump());
  }
  return Json::parse(session.control().get(kKey));
}

namespace {

void warn_of_other_ranks(run::RankSession& session, const StateReader& reader) {
  if (!reader.other_world_size()) return;
  session.log()->warn(
      "the checkpoint is of {} ranks, this run has {}: batches are the same, but sums have another "
      "order, so weights will differ in their last bits",
      reader.about()["world_size"].get<int>(), session.world().size);
}

// Warns of all facts that differ, except those in `expected`.
void warn_of_other_facts(run::RankSession& session, const StateReader& reader, const Json& facts,
                         const std::set<std::string>& expected) {
  const Json before = reader.about().value("run", Json::object());
  for (const auto& [name, value] : facts.items()) {
    if (expected.contains(name) || !before.contains(name) || before[name] == value) continue;
    if (value.is_null() || before[name].is_null()) continue;  // one of the two runs does not know the fact
    session.log()->warn("{} was {} when the checkpoint was taken and is {} now: {}", name, before[name].dump(),
                        value.dump(),
                        name == "metric" ? "no validation before this counts as the best any more"
                                         : "weights may differ from those of a run without a break");
  }
}

void warn_of_missing(run::RankSession& session, const StateReader& reader) {
  if (reader.missing().empty()) return;
  session.log()->warn(
      "the checkpoint has nothing of {} entries of how gradients are exchanged, the loss is scaled, or the best is "
      "found (the first is "
      "'{}'): they begin anew",
      reader.missing().size(), reader.missing().front());
}

std::string trial_of(const Json& facts) {
  return facts.value("trial", std::string());
}

}  // namespace

void tell_of_resume(run::RankSession& session, const StateReader& reader, const Json& facts, std::int64_t batch,
                    std::int64_t epoch) {
  if (session.world().rank != 0) return;
  session.write_event("resumed", {{"step", batch}, {"epoch", epoch}, {"path", session.resume_from().string()}});
  session.log()->info("going on from {}: {} batches are done", session.resume_from().string(), batch);
  warn_of_other_ranks(session, reader);
  warn_of_other_facts(session, reader, facts, {"name"});
  warn_of_missing(session, reader);
}

bool is_of_same_trial(const StateReader& reader, const Json& facts) {
  return trial_of(reader.about().value("run", Json::object())) == trial_of(facts);
}

void tell_of_beginning(run::RankSession& session, const fs::path& checkpoint, const StateReader& reader,
                       const Json& facts, std::int64_t batch, std::int64_t epoch) {
  if (session.world().rank != 0) return;
  session.write_event("began_from", {{"step", batch}, {"epoch", epoch}, {"path", checkpoint.string()}});
  session.log()->info("beginning with the training state of {}: {} batches are done", checkpoint.string(), batch);
  if (!is_of_same_trial(reader, facts)) {
    const std::string before = trial_of(reader.about().value("run", Json::object()));
    session.log()->warn(
        "the checkpoint is of {}, this run of {}: what the trial, its callbacks and schedulers in Python keep besides "
        "model, optimizer and position in the data is not taken over",
        before.empty() ? "an earlier version of dtrain" : before, trial_of(facts));
  }
  warn_of_other_ranks(session, reader);
  warn_of_other_facts(session, reader, facts, {"name", "model", "eval_model", "program", "trial", "metric"});
  warn_of_missing(session, reader);
}

}  // namespace dtrain::train
