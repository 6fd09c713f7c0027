// How the files of several hosts' ranks become one state.
#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint_harness.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/checkpoint/assemble.h"
#include "dtrain/checkpoint/generation_slots.h"
#include "dtrain/checkpoint/host_states.h"
#include "dtrain/checkpoint/memory_folder.h"
#include "dtrain/data/safetensors.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

using testing::ElementsAre;
using testing::HasSubstr;

using Floats = std::vector<float>;

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  Floats values;
};

void write_tensors(const fs::path& path, const std::vector<Tensor>& tensors, const std::string& values = {}) {
  std::vector<data::SafetensorsEntry> entries;
  std::string bytes;
  for (const Tensor& tensor : tensors) {
    const std::size_t size = tensor.values.size() * sizeof(float);
    entries.push_back({tensor.name, "F32", tensor.shape, 0, size});
    bytes.append(reinterpret_cast<const char*>(tensor.values.data()), size);
  }
  if (!values.empty()) {
    entries.push_back({std::string(kValuesName), "U8", {static_cast<std::int64_t>(values.size())}, 0, values.size()});
    bytes += values;
  }
  std::ofstream(path, std::ios::binary) << data::safetensors_header(entries, {}) << bytes;
}

Floats read_tensor(const fs::path& path, const std::string& name) {
  const data::SafetensorsFile file(path);
  const auto& entry = file.at(name);
  Floats values(entry.bytes / sizeof(float));
  file.read(entry, std::as_writable_bytes(std::span(values)));
  return values;
}

// What one of two hosts has if it has copies of the other's: no buffers, and no optimizer state in its place.
void write_parts(const fs::path& folder) {
  write_tensors(folder / kModelFile, {{"w", {2, 3}, {1, 2, 3, 4, 5, 6}}, {"mean", {2}, {0, 0}}});
  write_tensors(folder / kOptimizerFile, {{"exp_avg/w", {2, 3}, Floats(6)}, {"exp_avg/v", {2}, Floats(2)}});
  const std::string buffer = std::string(kBuffersOfRank) + "mean";
  write_tensors(folder / rank_file(0), {{buffer, {2}, {7, 8}}}, R"({"batch":5})");
  write_tensors(folder / rank_file(1), {{buffer, {2}, {9, 9}}}, R"({"batch":6})");
  write_tensors(folder / moments_file(0), {{moments_name("exp_avg/w", 0), {4}, {10, 20, 30, 40}}});
  write_tensors(folder / moments_file(1),
                {{moments_name("exp_avg/w", 4), {2}, {50, 60}}, {moments_name("exp_avg/v", 0), {2}, {70, 80}}});
}

About about_of(std::int64_t step) {
  About about;
  about.step = step;
  about.world_size = 2;
  return about;
}

void check_whole(const fs::path& folder) {
  EXPECT_THAT(read_tensor(folder / kModelFile, "w"), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(read_tensor(folder / kModelFile, "mean"), ElementsAre(7, 8)) << "rank 0's are the model's";
  EXPECT_THAT(read_tensor(folder / kOptimizerFile, "exp_avg/w"), ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_THAT(read_tensor(folder / kOptimizerFile, "exp_avg/v"), ElementsAre(70, 80));
  EXPECT_EQ(read_file(folder / kStateFile), R"({"batch":5})");
  EXPECT_EQ(look_at(folder).damage, "");
  EXPECT_EQ(look_at(folder).about.step, 5);
  EXPECT_FALSE(fs::exists(folder / moments_file(0)));
}

TEST(Assemble, BuffersAndStretchesGoToTheirPlaces) {
  const TemporaryFolder folder;
  write_parts(folder.path());
  std::ofstream(folder / "rank-0002.safetensors") << "of an earlier state";
  assemble(folder.path(), about_of(5));
  check_whole(folder.path());
  EXPECT_FALSE(fs::exists(folder / "rank-0002.safetensors"));
}

TEST(Assemble, AStretchThatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  write_parts(folder.path());
  write_tensors(folder / moments_file(1), {{moments_name("exp_avg/w", 5), {2}, {50, 60}}});
  try {
    assemble(folder.path(), about_of(5));
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'exp_avg/w@5' does not fit"));
  }
  EXPECT_FALSE(fs::exists(folder / kManifestFile)) << "what is not whole has no mark";
}

TEST(Assemble, TheFurthestStateOfWhichAHostHasAllPartsBecomesACheckpoint) {
  const TemporaryFolder run, storage;
  const MemoryFolder memory(run.path(), 1);
  for (const std::int64_t step : {5, 9}) {
    const fs::path part = part_folder(memory.path(), step);
    fs::create_directory(part);
    write_parts(part);
    if (step == 9) {  // rank 0's part is on another host
      fs::remove(part / rank_file(0));
      fs::remove(part / moments_file(0));
    }
    Manifest manifest{about_of(step), {}, /*has_checksums=*/false};
    for (const auto& entry : fs::directory_iterator(part)) {
      manifest.files.push_back({entry.path().filename(), entry.file_size(), {}});
    }
    std::ofstream(part / kManifestFile) << to_text(manifest);
  }
  EXPECT_EQ(newest_batch_in_memory(run.path(), 1), 9);
  const auto saved = save_newest_in_memory(run.path(), storage.path(), 1);
  ASSERT_EQ(saved, storage / "step-5");
  check_whole(*saved);
  EXPECT_THAT(verify(*saved), ElementsAre());
}

}  // namespace
}  // namespace dtrain::checkpoints
