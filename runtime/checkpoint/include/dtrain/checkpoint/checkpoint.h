// Checkpoints on disk. A run's checkpoints lie side by side in one folder, each in a folder of its own:
//
//   step-120/  model.safetensors        parameters, frozen parameters and buffers, under their names in state_dict()
//              optimizer.safetensors    what the optimizer remembers: "exp_avg/layer.weight", …
//              rank-0000.safetensors    what belongs to rank 0 alone; one for each rank
//              state.json               numbers and texts of the training state
//              manifest.json            written last: what the checkpoint is, and a checksum for each 4 MiB of each
//              file
//
// The number is that of batches done. A checkpoint is written as .partial-step-120, synchronised to the disk and
// renamed, so step-120 is whole or, after damage to the disk, found out by its checksums. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::checkpoints {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kManifestFile = "manifest.json";
std::string rank_file(int rank);  // "rank-0000.safetensors"

// What a checkpoint says about itself (manifest.json's "about").
struct About {
  std::int64_t step = 0;   // batches done
  std::int64_t epoch = 0;  // from 0
  int world_size = 1;
  std::string reason;                  // "period", "validation", "stop", "end"
  std::string metric;                  // searcher.metric, where it was validated at this batch; empty: it was not
  std::optional<double> metric_value;  // one that is no number (NaN, infinite) is written as none
  bool smaller_is_better = true;
  double time = 0;            // when the state was copied, in seconds since 1970
  Json run = Json::object();  // name, experiment, versions, CPU: what a resume compares
};
Json to_json(const About& about);
About about_from(const Json& json);

struct Entry {
  std::filesystem::path path;  // …/step-120
  About about;                 // where the manifest cannot be read: only the step, from the folder's name
  std::int64_t bytes = 0;      // of all its files
  std::string damage;        // why it cannot be used, as far as its manifest and the files' sizes show; empty: nothing
  std::string not_finite{};  // "model.safetensors: layer.weight", a weight with a value that is not finite; empty: none

  bool leads_on() const { return damage.empty() && not_finite.empty(); }
};

// The checkpoints in `folder`, the oldest first; also damaged ones. A folder that does not exist has none. Reads the
// manifests, not the files. SystemError where the folder cannot be read.
std::vector<Entry> list(const std::filesystem::path& folder);
// The entry of one checkpoint's folder. What is wrong with it, its absence too, is the entry's damage.
Entry look_at(const std::filesystem::path& checkpoint);

// Reads every byte of a checkpoint and compares it with its checksums. One line for each thing that is wrong, with the
// file, the offset and both checksums; empty: it is whole. `on_progress` gets the bytes read so far and of all files,
// on the calling thread, some times a second.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;
std::vector<std::string> verify(const std::filesystem::path& checkpoint, const Progress& on_progress = {});

// The CRC-32C of a whole file of any kind, eight hexadecimal digits. SystemError.
std::string checksum_of_file(const std::filesystem::path& file);

// The newest checkpoint that verifies, and why newer ones were passed over ("step-140: rank-0001.safetensors is …").
// SystemError where the folder cannot be read.
struct Newest {
  std::optional<Entry> entry;
  std::optional<Entry> finite;  // where a weight of `entry` is not finite: the newest that verifies and has finite ones
  std::vector<std::string> passed_over;
  int damaged = 0;  // how many of these, the first ones, were completed once; the others were not
};
Newest find_newest(const std::filesystem::path& folder);

// Which checkpoints stay when a new one is durable: the newest `latest`, at least one, and the best `best` by
// About::metric_value. The others go. Damaged ones stay: only a user deletes them. One with weights that are not finite
// is never the best, and as long as none with finite weights has come after it, the newest before it with such stays.
struct Retention {
  int latest = 1;
  int best = 1;
  // The batches of checkpoints that were there when the run began or went on, further than it: they were passed over,
  // so they are damaged, although only their checksums may show it, or could not be read then. They stay.
  std::vector<std::int64_t> passed_over{};
};
// Those of `entries` that go once that of batch `written` is durable. It stays itself, as one of the newest. Of equal
// metrics the earlier checkpoint is the better one; a metric of another name than the newest one's counts as none.
std::vector<Entry> superseded(const std::vector<Entry>& entries, std::int64_t written, const Retention& retention);
// The `count` best of them, the best first: whole ones with a metric, as superseded() compares them.
std::vector<Entry> best_of(const std::vector<Entry>& entries, int count);

// Deletes checkpoints. Each is renamed first, and that is made durable, so that a deletion that is cut short leaves
// nothing that looks like a checkpoint. SystemError.
void remove_checkpoints(const std::vector<std::filesystem::path>& checkpoints);

// Where the checkpoints of a run lie: a folder of its own in the experiment's checkpoint_storage, or checkpoints/ in
// the run's folder. The run's folder says which: checkpoints/storage.json, which is written at the start of a run whose
// checkpoints lie elsewhere. DataError where that file is damaged.
std::filesystem::path storage_of_run(const std::filesystem::path& run_folder);
// Writes storage.json. `storage` is absolute. `claim`: the storage has the same; empty: none. SystemError.
void write_storage_of_run(const std::filesystem::path& run_folder, const std::filesystem::path& storage,
                          const std::string& claim = {});
// storage.json's claim; empty: it has none.
std::string claim_of_run(const std::filesystem::path& run_folder);

// Puts a checkpoint into another folder too, durably: by hard links, which cost no space, or by copies where there can
// be none. False: it is gone meanwhile. SystemError.
bool adopt_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& storage);

}  // namespace dtrain::checkpoints
