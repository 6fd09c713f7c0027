// What tests of checkpoints share: a snapshot with known bytes, and a saver for it.
#pragma once

#include <chrono>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "../harness/temporary_folder.h"
#include "dtrain/base/crc32c.h"
#include "dtrain/base/file.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/checkpoint/saver.h"

namespace dtrain::checkpoints {

inline constexpr std::chrono::seconds kPatience{60};  // for what is expected to happen

struct NamedSize {
  std::string name;
  std::size_t bytes;
};

// The memory of one host whose ranks' snapshots become files of these sizes.
class TestSnapshot {
 public:
  explicit TestSnapshot(const std::vector<NamedSize>& files, int local_ranks = 1)
      : images_(place(files)), memory_(SnapshotMemory::create(end_, local_ranks), local_ranks) {}

  // Other bytes for each seed, and what the files are to contain.
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    contents_.clear();
    for (const FileImage& image : images_) {
      std::string content(image.bytes, '\0');
      for (std::size_t at = 0; at < content.size(); at += 8) {
        const std::uint64_t word = random();
        std::memcpy(content.data() + at, &word, std::min<std::size_t>(8, content.size() - at));
      }
      std::memcpy(memory_.data() + image.offset, content.data(), content.size());
      contents_.push_back(std::move(content));
    }
  }
  // All ranks' parts.
  void mark_copied(std::uint64_t number) const {
    for (int rank = 0; rank < memory_.local_ranks(); ++rank) memory_.mark_copied(rank, number);
  }

  const SnapshotMemory& memory() const { return memory_; }
  const std::vector<FileImage>& images() const { return images_; }
  const std::vector<std::string>& contents() const { return contents_; }

 private:
  std::vector<FileImage> place(const std::vector<NamedSize>& files) {
    std::vector<FileImage> images;
    for (const NamedSize& file : files) {
      images.push_back({file.name, end_, file.bytes});
      end_ += (file.bytes + 4095) / 4096 * 4096;
    }
    return images;
  }

  std::size_t end_ = 0;
  std::vector<FileImage> images_;
  SnapshotMemory memory_;
  std::vector<std::string> contents_;
};

inline About about_step(std::int64_t step) {
  About about;
  about.step = step;
  about.reason = "period";
  about.time = 1000.0 + static_cast<double>(step);
  return about;
}

inline SaveRequest request_for(const TestSnapshot& snapshot, std::uint64_t number, const About& about) {
  SaveRequest request;
  request.number = number;
  request.about = about;
  request.files = snapshot.images();
  request.state = {{"batch", about.step}};
  request.patience_s = 30;
  return request;
}

// Saves and waits. The snapshot holds the bytes of `seed` then.
inline SaveResult save_and_wait(Saver& saver, TestSnapshot& snapshot, std::uint64_t number, const About& about,
                                std::uint64_t seed) {
  snapshot.fill(seed);
  snapshot.mark_copied(number);
  saver.save(request_for(snapshot, number, about));
  const auto result = saver.wait(kPatience);
  if (!result) throw std::runtime_error("the saver has not answered");
  return *result;
}

inline SaverOptions options_for(const std::filesystem::path& storage, Retention retention = {1000, 0}) {
  SaverOptions options;
  options.storage = storage;
  options.retention = retention;
  return options;
}

// A whole checkpoint without a saver: step-N in `storage`.
inline void write_checkpoint(const std::filesystem::path& storage, const About& about,
                             const std::map<std::string, std::string>& files) {
  const auto folder = storage / ("step-" + std::to_string(about.step));
  std::filesystem::create_directories(folder);
  Manifest manifest{about, {}};
  for (const auto& [name, content] : files) {
    write_file_atomic(folder / name, content);
    ManifestFile file{name, content.size(), {}};
    for (std::size_t at = 0; at < content.size(); at += kPieceBytes) {
      const std::string_view piece = std::string_view(content).substr(at, kPieceBytes);
      file.checksums.push_back(crc32c_versions().front()(std::as_bytes(std::span(piece))));
    }
    manifest.files.push_back(file);
  }
  write_file_atomic(folder / kManifestFile, to_text(manifest));
}

// What is in a folder, hidden names too, except the lock.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().filename() != ".saver.lock") names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace dtrain::checkpoints
