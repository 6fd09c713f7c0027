// The folder in which a checkpoint is made: its small files, the protocol of the hosts that fill it, and how it becomes
// a checkpoint. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/file.h"
#include "dtrain/checkpoint/checkpoint.h"

namespace dtrain::checkpoints {

// The open descriptor makes sure that files go into this folder, not into a later folder of the same name.
struct OpenFolder {
  std::filesystem::path path;  // for messages
  UniqueFd fd;
};

// Throws the error of a write with its place, and with the remedy for a full disk.
[[noreturn]] void fail_to_write(const std::filesystem::path& path, std::uint64_t offset, int code);
[[noreturn]] void fail_to_reserve(const std::filesystem::path& path, std::uint64_t bytes, int code);

// Makes a new file and synchronises it; its name is durable once the folder is synchronised. Returns the file's entry
// for the manifest. SystemError.
ManifestFile write_small_file(const OpenFolder& folder, const std::string& name, std::string_view text);

// The protocol by which the savers of several hosts complete one checkpoint: host 0 makes the folder with .begin.json;
// every other host writes its files into the folder, and last .host-N.json, which has the list of files or the error;
// host 0 collects these. A token that host 0 draws for each save distinguishes parts of earlier attempts.
//
// Host 0: writes .begin.json and returns the token.
std::string write_beginning(const OpenFolder& folder, const About& about);

// Another host: returns the folder of this checkpoint and its token, once host 0 has begun it; empty: not yet.
// SystemError.
struct Beginning {
  OpenFolder folder;
  std::string token;
};
std::optional<Beginning> find_beginning(const std::filesystem::path& partial, const About& about);

// Another host: reports that its files are written, or the `error` that prevented it.
void write_host_part(const OpenFolder& folder, const std::string& token, int host,
                     const std::vector<ManifestFile>& files, const std::string& error);

// Host 0: returns the files of a host, once all are there; empty: not yet. Throws the error of that host.
std::optional<std::vector<ManifestFile>> find_host_part(const OpenFolder& folder, const std::string& token, int host);

// Host 0: deletes the files of these functions from the folder.
void remove_host_parts(const OpenFolder& folder, int hosts);

// The saver's operations on whole folders of the storage, whose lock it holds. SystemError.
//
// Deletes the remains of dead savers and of interrupted deletions, and restores a replaced checkpoint whose replacement
// is missing.
void clean_leftovers(const std::filesystem::path& storage);

// Makes an empty .partial-step-N.
OpenFolder make_partial(const std::filesystem::path& storage, std::int64_t step);

// Gives the partial folder, whose contents are durable, its final name, durably. An existing checkpoint of that name
// stays if it is intact and has the same content; otherwise it is replaced. At each moment one of the two exists.
std::filesystem::path publish(const std::filesystem::path& storage, const Manifest& manifest);

}  // namespace dtrain::checkpoints
