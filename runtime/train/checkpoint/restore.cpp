#include "checkpoint/restore.h"

#include <array>
#include <cerrno>
#include <fstream>
#include <set>
#include <string_view>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <torch/version.h>

#include "checkpoint/gathered_state.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/state_image.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/text.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/config/experiment.h"
#include "dtrain/rank/libtorch.h"
#include "model/weights.h"
#include "numerics/matmul_path.h"

namespace dtrain::train {

namespace fs = std::filesystem;

namespace {

// State that matters only as long as gradients are exchanged in the same way and in the same precision, and state that
// exists only with keys that may have been added since: it may begin anew.
constexpr std::array kMayBegin{std::string_view("step/mode/"),
                               std::string_view("step/loss_scaler/"),
                               std::string_view("step/optimizer_counters/"),
                               std::string_view("early_stop/"),
                               std::string_view("plateau/"),
                               std::string_view("callbacks/"),
                               std::string_view("step/window/weight"),
                               std::string_view("validation/next_best"),
                               std::string_view("logical/compression/")};
// State that checkpoints of earlier versions lack, or of runs that do not need it; the part that restores it handles
// its absence.
constexpr std::array kMayLack{std::string_view("data/position"), std::string_view("beside/awaited"),
                              std::string_view("step/mode/watched")};
constexpr const char* kVirtualRanks = "virtual_ranks";
constexpr const char* kVirtualThreads = "virtual_rank_threads";
constexpr std::size_t kMostProblems = 20;
constexpr std::string_view kWindowWeight = "step/window/weight";

constexpr std::size_t kPiece = 64u << 20;  // bytes of a file that are sent at once

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

void warn_of_other_ranks(rank::RankSession& session, const StateReader& reader) {
  if (!reader.other_world_size() || reader.of_virtual_ranks()) return;
  const int before = reader.about()["world_size"].get<int>(), now = session.world().size;
  const std::int64_t batch = session.experiment().global_batch_size;
  const bool same_size = reader.about().value("/run/global_batch_size"_json_pointer, batch) == batch;
  const std::int64_t is = batch / now * now, was = same_size ? batch / before * before : is;
  session.log()->warn("the checkpoint is of {} ranks, this run has {}: {}", before, now,
                      was == is ? "batches are the same, but sums have another order, so weights will differ in their "
                                  "last bits"
                                : "a batch has " + count_of(is, "sample") + " instead of " + std::to_string(was) +
                                      ", because it is divided evenly");
}

// Warns of all facts that differ, except those in `expected`.
void warn_of_other_facts(rank::RankSession& session, const StateReader& reader, const Json& facts,
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

void warn_of_missing(rank::RankSession& session, const StateReader& reader) {
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

struct StateReader::File {
  explicit File(const std::filesystem::path& path) : file(path) {
    for (const auto& entry : file.entries()) entries[entry.name] = &entry;
  }
  data::SafetensorsFile file;
  std::map<std::string, const data::SafetensorsEntry*> entries;
  Json values;  // numbers and texts of a rank's file
};

class StateReader::Restorer final : public StateVisitor {
 public:
  explicit Restorer(StateReader& reader) : reader_(reader) {}
  bool replaces() const override { return true; }
  std::vector<std::string> problems;

 protected:
  void on_tensor(const std::string& path, at::Tensor value) override {
    reader_.read_to_ = value;
    const auto found = find(path);
    reader_.read_to_.reset();
    if (!found) return lacks(path);
    if (found->is_same(value)) return;
    if (found->sizes() != value.sizes() || found->scalar_type() != value.scalar_type()) {
      return wrong(path, describe_tensor(*found), describe_tensor(value));
    }
    const at::NoGradGuard no_grad;
    value.copy_(*found);
  }
  void on_number(const std::string& path, std::int64_t& value) override {
    if (const Json* found = find_value(path)) {
      found->is_number_integer() ? void(value = found->get<std::int64_t>()) : wrong(path, found->dump(), "an integer");
    }
  }
  void on_real(const std::string& path, double& value) override {
    const Json* const found = find_value(path);
    if (!found) return;
    const auto number = number_of(*found);
    number ? void(value = *number) : wrong(path, found->dump(), "a number");
  }
  void on_reals(const std::string& path, std::vector<float>& values) override {
    const auto found = find(path);
    if (!found) return lacks(path);
    if (found->scalar_type() != at::kFloat) return wrong(path, describe_tensor(*found), "F32");
    values.assign(found->const_data_ptr<float>(), found->const_data_ptr<float>() + found->numel());
  }
  void on_text(const std::string& path, std::string& value) override {
    if (const Json* found = find_value(path)) {
      found->is_string() ? void(value = found->get<std::string>()) : wrong(path, found->dump(), "a text");
    }
  }

 private:
  static std::string describe_tensor(const at::Tensor& tensor) {
    std::string shape;
    for (const std::int64_t size : tensor.sizes()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    return std::string(safetensors_name(tensor.scalar_type())) + " [" + shape + "]";
  }
  void lacks(const std::string& path) {
    if (std::ranges::find(kMayLack, path) != kMayLack.end()) return;
    const std::string of_any = without_number(path);
    const auto begins = [&](std::string_view part) { return of_any.starts_with(part); };
    if (std::any_of(kMayBegin.begin(), kMayBegin.end(), begins)) return reader_.missing_.push_back(path);
    problems.push_back("it has no '" + path + "'");
  }
  void wrong(const std::string& path, const std::string& there, const std::string& wanted) {
    problems.push_back("'" + path + "' is " + there + ", and not " + wanted);
  }
  // Leaves out the number of a logical rank.
  static std::string without_number(std::string path) {
    if (!path.starts_with(state_path::kLogical)) return path;
    const std::size_t number = state_path::kLogical.size();
    return path.erase(number, path.find('/', number) + 1 - number);
  }
  static std::string name_behind(const std::string& path, std::string_view part) { return path.substr(part.size()); }

  // Finds the tensor of this rank, or of all.
  std::optional<at::Tensor> find(const std::string& path) {
    if (path.starts_with(state_path::kLogical)) {
      for (int rank = 0; rank < reader_.world_size_before_; ++rank) {
        if (auto found = reader_.read(checkpoints::rank_file(rank), path)) return found;
      }
      return std::nullopt;
    }
    if (!reader_.other_world_size()) {
      if (reader_.one_state_ && differs_between_ranks(path)) return mean_of_ranks(path);
      if (auto found = reader_.read(checkpoints::rank_file(reader_.rank_), path)) return found;
    } else if (reader_.of_virtual_ranks()) {
      if (auto found = reader_.read(checkpoints::rank_file(0), path)) return found;
    } else if (path.starts_with(state_path::kBuffers) || path.starts_with(state_path::kTrial) ||
               path.starts_with(state_path::kCallbacks)) {
      return reader_.read(checkpoints::rank_file(0), path);
    } else if (auto mean = mean_of_ranks(path)) {
      return mean;
    }
    if (path.starts_with(state_path::kParameters)) return read_parameter(name_behind(path, state_path::kParameters));
    if (path.starts_with(state_path::kFrozen)) {
      return reader_.read(checkpoints::kModelFile, name_behind(path, state_path::kFrozen));
    }
    if (path.starts_with(state_path::kOptimizer)) {
      return reader_.read(checkpoints::kOptimizerFile, name_behind(path, state_path::kOptimizer));
    }
    return std::nullopt;
  }

  std::optional<at::Tensor> read_parameter(const std::string& name) {
    if (auto found = reader_.read(checkpoints::kModelFile, name)) return found;
    return reader_.read(checkpoints::kOptimizerFile, std::string(kLeftOutParameter) + name);
  }

  // True for parameters and optimizer state of local steps: then all ranks but rank 0 have their own.
  bool differs_between_ranks(const std::string& path) {
    if (!path.starts_with(state_path::kParameters) && !path.starts_with(state_path::kOptimizer)) return false;
    return reader_.world_size_before_ > 1 && reader_.own(1).entries.contains(path);
  }

  // Used for a checkpoint with another number of ranks, or of local steps. Rank 0's part of the ranks' own state is in
  // the shared files.
  std::optional<at::Tensor> mean_of_ranks(const std::string& path) {
    const at::Tensor to = std::exchange(reader_.read_to_, at::Tensor());
    std::vector<at::Tensor> values;
    for (int rank = 0; rank < reader_.world_size_before_; ++rank) {
      auto value = reader_.read(checkpoints::rank_file(rank), path);
      if (!value && rank == 0 && path.starts_with(state_path::kParameters)) {
        value = read_parameter(name_behind(path, state_path::kParameters));
      }
      if (!value && rank == 0 && path.starts_with(state_path::kOptimizer)) {
        value = reader_.read(checkpoints::kOptimizerFile, name_behind(path, state_path::kOptimizer));
      }
      if (value) values.push_back(*value);
    }
    reader_.read_to_ = to;
    if (values.empty()) return std::nullopt;
    at::Tensor sum = values.front();
    if (!at::isFloatingType(sum.scalar_type())) return sum;
    sum = sum.to(at::kDouble);
    int count = 1;
    for (std::size_t i = 1; i < values.size(); ++i) {
      if (values[i].sizes() != sum.sizes()) continue;
      sum += values[i];
      ++count;
    }
    return (sum / count).to(values.front().scalar_type());
  }

  const Json* find_value(const std::string& path) {
    if (path.starts_with(state_path::kLogical)) {
      for (int rank = 0; rank < reader_.world_size_before_; ++rank) {
        const Json& values = reader_.own(rank).values;
        if (const auto found = values.find(path); found != values.end()) return &*found;
      }
      lacks(path);
      return nullptr;
    }
    if (reader_.other_world_size() && path == state_path::kMetricSums) return summed_metrics(path);
    if (reader_.other_world_size() && !reader_.of_virtual_ranks() && path.starts_with(kWindowWeight)) {
      if (const Json* value = mean_weight(path)) return value;
    }
    const Json& values = reader_.own(reader_.other_world_size() ? 0 : reader_.rank_).values;
    const auto found = values.find(path);
    if (found != values.end()) return &*found;
    lacks(path);
    return nullptr;
  }

  // Returns the weight of the batches of an open window: the mean over the ranks, as for their gradients
  // (mean_of_ranks()). Null for any other path.
  const Json* mean_weight(const std::string& path) {
    const std::string known = std::string(kWindowWeight) + "_known";
    if (path != kWindowWeight && path != known) return nullptr;
    bool is_known = false;
    double sum = 0;
    for (int rank = 0; rank < reader_.world_size_before_; ++rank) {
      const Json& values = reader_.own(rank).values;
      if (values.value(known, 0) == 0) continue;
      is_known = true;
      sum += number_of(values.at(std::string(kWindowWeight))).value_or(0);
    }
    weight_ = path == known ? Json(is_known ? 1 : 0) : Json(sum / reader_.world_size_before_);
    return &weight_;
  }

  // Sums the metrics of all ranks (MetricReducer::visit()). With another number of ranks, rank 0 gets the sums.
  const Json* summed_metrics(const std::string& path) {
    Json all = {{"samples", 0}, {"weights", Json::object()}, {"sums", Json::object()}, {"on_device", Json::object()}};
    for (int rank = 0; rank < reader_.world_size_before_ && reader_.rank_ == 0; ++rank) {
      const Json& values = reader_.own(rank).values;
      if (!values.contains(path)) continue;
      const Json of_rank = Json::parse(values[path].get<std::string>());
      all["samples"] = all["samples"].get<std::int64_t>() + of_rank["samples"].get<std::int64_t>();
      for (const auto& [name, weight] : of_rank["weights"].items()) {
        all["weights"][name] = all["weights"].value(name, 0.0) + weight.get<double>();
      }
      const Json reductions = of_rank.value("reductions", Json::object());
      for (const char* const kind : {"sums", "on_device"}) {
        for (const auto& [name, sum] : of_rank[kind].items()) {
          const double value = number_of(sum).value_or(0);
          const bool is_first = !all[kind].contains(name);
          all[kind][name] = number_or_text(is_first ? value
                                                    : combined(reductions.value(name, Reduction::kMean),
                                                               number_of(all[kind][name]).value_or(0), value));
        }
      }
      for (const auto& [name, reduction] : reductions.items()) all["reductions"][name] = reduction;
      for (const auto& name : of_rank.value("logged", Json::array())) all["logged"].push_back(name);
    }
    summed_ = all.dump();
    return &summed_;
  }

  StateReader& reader_;
  Json summed_;
  Json weight_;
};

StateReader::StateReader(const std::filesystem::path& checkpoint, int rank, int world_size, bool one_state)
    : folder_(checkpoint), rank_(rank), world_size_(world_size), one_state_(one_state) {
  const Json manifest = read_json(folder_ / checkpoints::kManifestFile);
  about_ = manifest.at("about");
  world_size_before_ = about_.at("world_size").get<int>();
  of_virtual_ranks_ = about_.value("run", Json::object()).contains(kVirtualRanks);
}

StateReader::~StateReader() = default;

StateReader::File* StateReader::file(const std::string& name) {
  auto& opened = files_[name];
  if (!opened) opened = std::make_unique<File>(folder_ / name);
  return opened.get();
}

StateReader::File& StateReader::own(int rank) {
  File& opened = *file(checkpoints::rank_file(rank));
  if (!opened.values.is_null()) return opened;
  const auto& entry = opened.file.at(std::string(checkpoints::kValuesName));
  std::string text(entry.bytes, ' ');
  opened.file.read(entry, {reinterpret_cast<std::byte*>(text.data()), text.size()});
  opened.values = Json::parse(text);
  return opened;
}

std::optional<at::Tensor> StateReader::read(const std::string& name, const std::string& tensor) {
  File& from = *file(name);
  const auto found = from.entries.find(tensor);
  if (found == from.entries.end()) return std::nullopt;
  const data::SafetensorsEntry& entry = *found->second;
  const at::Tensor& to = read_to_;
  const bool fits = to.defined() && to.is_cpu() && to.is_contiguous() && to.sizes() == entry.shape &&
                    safetensors_name(to.scalar_type()) == entry.dtype;
  if (fits) {
    from.file.read(entry, {static_cast<std::byte*>(to.mutable_data_ptr()), to.nbytes()});
    return to;
  }
  return read_tensor(from.file, *found->second);
}

void StateReader::restore(const std::function<void(StateVisitor&)>& visit) {
  Restorer restorer(*this);
  visit(restorer);
  if (restorer.problems.empty()) return;
  const std::size_t shown = std::min(restorer.problems.size(), kMostProblems);
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) text += "\n  " + restorer.problems[i];
  if (shown < restorer.problems.size()) text += "\n  and " + std::to_string(restorer.problems.size() - shown) + " more";
  throw ConfigError(
      "the checkpoint " + folder_.string() + " does not fit this run:" + text,
      "take the model, the optimizer and the settings that the checkpoint was taken with, or start a new run "
      "from its weights alone: initial_weights, without training_state");
}

void send_file(rank::RankSession& session, int from, const fs::path& file, const fs::path& to, std::size_t bytes,
               bool receives) {
  std::ifstream read;
  if (session.world().rank == from) read.open(file, std::ios::binary);
  std::ofstream written;
  if (receives) written.open(to, std::ios::binary);
  std::string piece(std::min(bytes, kPiece), '\0');
  for (std::size_t at = 0; at < bytes; at += kPiece) {
    const std::size_t size = std::min(kPiece, bytes - at);
    if (read.is_open() && !read.read(piece.data(), static_cast<std::streamsize>(size))) {
      throw SystemError("cannot read " + file.string(), errno);
    }
    session.communicator().broadcast(piece.data(), size, comm::DataType::kUint8, from).wait();
    if (receives) written.write(piece.data(), static_cast<std::streamsize>(size));
  }
  if (receives && !written.flush()) throw SystemError("cannot write " + to.string(), errno);
}

OpenCheckpoint::OpenCheckpoint(rank::RankSession& session, const CheckpointHosts& hosts) {
  const GatheredState state = gather_state(session, hosts);
  folder_ = state.folder;
  if (state.is_temporary) temporary_ = folder_;
}

OpenCheckpoint::OpenCheckpoint(rank::RankSession& session, const fs::path& checkpoint) : folder_(checkpoint) {
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
    send_file(session, /*from=*/0, folder_ / name, local / name, bytes.get<std::size_t>(), receives);
  }
  session.control().barrier("train/resume-received");
  folder_ = local;
}

OpenCheckpoint::~OpenCheckpoint() {
  std::error_code code;
  if (!temporary_.empty()) fs::remove_all(temporary_, code);
}

Json facts_for_resume(rank::RankSession& session, const BatchSource& data, const std::string& trial) {
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
                  {"samples_per_epoch", or_null(samples)},
                  {"metric", metric_text(experiment.searcher)},
                  {"seed", experiment.experiment_seed},
                  {"dtrain", rank::version()},
                  {"libtorch", TORCH_VERSION},
                  {"cpu_capability", at::get_cpu_capability()},
                  {"threads", at::get_num_threads()},
                  {"device", session.gpu() ? "cuda" : "cpu"}};
    if (experiment.virtual_ranks > 0) {
      facts[kVirtualRanks] = experiment.virtual_ranks;
      facts[kVirtualThreads] = experiment.virtual_rank_threads;
    }
    if (job && !job->eval_file.empty()) facts["eval_model"] = absolute_text(job->eval_file);
    // The path has been chosen when the process began.
    if (!session.gpu()) facts["matmul"] = profile::to_string(choose_matmul(experiment.optimizations.matmul).path);
    session.control().set(kKey, facts.dump());
  }
  return Json::parse(session.control().get(kKey));
}

void require_same_virtual_ranks(const StateReader& reader, const Json& facts, const fs::path& checkpoint) {
  const Json before = reader.about().value("run", Json::object());
  for (const char* const key : {kVirtualRanks, kVirtualThreads}) {
    const int was = before.value(key, 0), is = facts.value(key, 0);
    if (was == is) continue;
    const auto text = [&](int number) { return number == 0 ? std::string("none") : std::to_string(number); };
    throw rank::AgreedError("the checkpoint " + checkpoint.string() + " is of reproducibility." + key + ": " +
                                text(was) + ", and this run has " + text(is) + ": it cannot go on with the same bits",
                            was == 0 ? "leave the key out, or begin a new run with its weights alone: initial_weights, "
                                       "without training_state"
                                     : "set the key to " + text(was) +
                                           ", or begin a new run with its weights alone: "
                                           "initial_weights, without training_state");
  }
}

void tell_of_resume(rank::RankSession& session, const StateReader& reader, const Json& facts, std::int64_t batch,
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

void tell_of_beginning(rank::RankSession& session, const fs::path& checkpoint, const StateReader& reader,
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
