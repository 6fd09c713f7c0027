// Checkpoints on disk. A run's checkpoints are in one folder, each in a folder of its own:
//
//   step-120/  model.safetensors        parameters, frozen parameters and buffers, under their names in state_dict()
//              optimizer.safetensors    the optimizer's state: "exp_avg/layer.weight", …
//              rank-0000.safetensors    the state of rank 0 alone; one file for each rank
//              state.json               numbers and texts of the training state
//              manifest.json            written last: what the checkpoint is, and checksums of all files
//
// The number in a name counts the batches done. A checkpoint is written as .partial-step-120, synchronised to the disk
// and renamed. So step-120 is complete; if the disk is damaged later, its checksums show it. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/json.h"

namespace dtrain::checkpoints {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";
inline constexpr const char* kManifestFile = "manifest.json";
std::string rank_file(int rank);  // "rank-0000.safetensors"

// The description of a checkpoint ("about" in manifest.json).
struct About {
  std::int64_t step = 0;   // batches done
  std::int64_t epoch = 0;  // from 0
  int world_size = 1;
  std::string reason;                  // "period", "validation", "stop", "end"
  std::string metric;                  // searcher.metric, if it was validated at this batch; empty: it was not
  std::optional<double> metric_value;  // NaN and infinity are written as none
  bool smaller_is_better = true;
  bool awaits_validation = false;  // a validation beside the training evaluates it, whose result is not known yet
  double time = 0;                 // when the state was copied, in seconds since 1970
  Json run = Json::object();       // compared when a run continues: "name", "trial", "dtrain", "cpu_capability", ...
};
Json to_json(const About& about);
About about_from(const Json& json);

struct Entry {
  std::filesystem::path path;  // …/step-120
  About about;                 // only the step, from the folder's name, if the manifest cannot be read
  std::int64_t bytes = 0;      // of all its files
  std::string damage;  // why it cannot be used, as far as its manifest and the files' sizes show; empty: it can be used
  std::string not_finite{};  // "model.safetensors: layer.weight", a weight with a value that is not finite; empty: none

  // Intact, as far as known, and all weights are finite.
  bool leads_on() const { return damage.empty() && not_finite.empty(); }
};

// The checkpoints in `folder`, the oldest first, damaged ones included. A folder that does not exist has none. Reads
// the manifests, not the files. SystemError if the folder cannot be read.
std::vector<Entry> list(const std::filesystem::path& folder);
// The entry of one checkpoint. If its folder is damaged or missing, Entry::damage is set.
Entry look_at(const std::filesystem::path& checkpoint);

// Reads every byte of a checkpoint and compares it with its checksums. Returns one line for each error, with the file,
// the offset and both checksums; empty: the checkpoint is intact. `on_progress` gets the bytes read so far and the
// bytes of all files, a few times a second, on the calling thread.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;
std::vector<std::string> verify(const std::filesystem::path& checkpoint, const Progress& on_progress = {});

// The CRC-32C of a whole file of any kind, eight hexadecimal digits. SystemError.
std::string checksum_of_file(const std::filesystem::path& file);

// The newest checkpoint that verifies, and why newer ones were skipped ("step-140: rank-0001.safetensors is …").
// SystemError if the folder cannot be read.
struct Newest {
  std::optional<Entry> entry;
  // If a weight of `entry` is not finite: the newest checkpoint that verifies and has only finite weights.
  std::optional<Entry> finite;
  std::vector<std::string> passed_over;
  int damaged = 0;  // how many of passed_over were complete and are damaged; they come first
};
Newest find_newest(const std::filesystem::path& folder);

// The checkpoints that stay when a new one is durable: the newest (`latest` of them, at least one) and the best by
// About::metric_value (`best` of them). The others are deleted. Damaged ones stay: only a user deletes them. A
// checkpoint with weights that are not finite is never among the best. Until a later checkpoint has finite weights
// again, the newest earlier one with finite weights stays, too. One that awaits its validation stays.
struct Retention {
  int latest = 1;
  int best = 1;
  // The batches of later checkpoints that the run skipped when it began or went on, because they were damaged (even if
  // only their checksums showed it) or could not be read. These checkpoints stay.
  std::vector<std::int64_t> passed_over{};
};
// The `entries` to delete once the checkpoint of batch `written` is durable. That checkpoint stays and counts as one of
// the newest. If metrics are equal, the earlier checkpoint is the better one. Only metrics with the name of the newest
// one's count.
std::vector<Entry> superseded(const std::vector<Entry>& entries, std::int64_t written, const Retention& retention);
// The `count` best entries, the best first, in the order that superseded() uses. Only undamaged ones with a metric
// count.
std::vector<Entry> best_of(const std::vector<Entry>& entries, int count);

// Writes into the manifest of a checkpoint that its validation has ended, with this value of searcher.metric, if there
// is one: then `metric` is its name. SystemError, DataError.
void note_validation(const std::filesystem::path& checkpoint, const std::string& metric, std::optional<double> value);

// Deletes checkpoints. Each is first renamed durably, so an interrupted deletion leaves nothing that looks like a
// checkpoint. SystemError.
void remove_checkpoints(const std::vector<std::filesystem::path>& checkpoints);

// The folder of a run's checkpoints: a folder of its own in the experiment's checkpoint_storage, or checkpoints/ in the
// run's folder. If it is elsewhere, checkpoints/storage.json in the run's folder names it; that file is written when
// the run starts. DataError if that file is damaged.
std::filesystem::path storage_of_run(const std::filesystem::path& run_folder);
// Writes storage.json. `storage` is absolute. `claim`: a text that the storage folder holds, too, which shows that the
// run owns it; empty: none. SystemError.
void write_storage_of_run(const std::filesystem::path& run_folder, const std::filesystem::path& storage,
                          const std::string& claim = {});
// The claim in storage.json; empty: none.
std::string claim_of_run(const std::filesystem::path& run_folder);

// Adds a checkpoint to the folder `storage` durably: by hard links, which take no space, or else by copies. False: the
// checkpoint was deleted meanwhile. SystemError.
bool adopt_checkpoint(const std::filesystem::path& checkpoint, const std::filesystem::path& storage);

// manifest.json: what a checkpoint is, and the checksums of its files. One JSON object. In every version of the format
// its last line has the checksum of all bytes before it.
inline constexpr int kFormatVersion = 1;
inline constexpr std::size_t kPieceBytes = 4 << 20;  // each has a checksum

struct ManifestFile {
  std::string name;  // of a file in the checkpoint's folder
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> checksums;  // CRC-32C of each piece; the last may be shorter; none for an empty file
  std::string not_finite{};              // its first weight with a value that is not finite; empty: there is none
  bool operator==(const ManifestFile&) const = default;
};
Json to_json(const ManifestFile& file);
// DataError, also if the number of checksums does not fit the size.
ManifestFile manifest_file_from(const Json& json, bool has_checksums = true);

struct Manifest {
  About about;
  std::vector<ManifestFile> files;
  bool has_checksums = true;  // false: of a state in memory (memory_folder.h)
};
std::string to_text(const Manifest& manifest);
// DataError: damaged, or written by a newer version of dtrain.
Manifest parse_manifest(std::string_view text);
// The manifest of a checkpoint's folder. DataError, also if its step is not the one in the folder's name; SystemError.
Manifest read_manifest(const std::filesystem::path& checkpoint);

std::string checksum_text(std::uint32_t checksum);  // eight hexadecimal digits
std::int64_t total_bytes(const std::vector<ManifestFile>& files);
// "model.safetensors: layer.weight", the first weight with a value that is not finite; empty: there is none.
std::string not_finite_weight(const std::vector<ManifestFile>& files);

// The weights of a checkpoint as a file for other programs: writes model.safetensors with each tensor under all of its
// names. A checkpoint has a tied tensor only once; its metadata "tied.<other name>" gives the name of that tensor. The
// folder of `output` must exist; `output` is replaced atomically. Does not verify the checkpoint. Returns the size.
// DataError, SystemError.
std::uint64_t export_safetensors(const std::filesystem::path& checkpoint, const std::filesystem::path& output);

}  // namespace dtrain::checkpoints
