// The protocol by which the savers of several hosts complete one checkpoint: host 0 makes the folder with .begin.json;
// every other host writes its files into the folder, and last .host-N.json, which has the list of files or the error;
// host 0 collects these. A token that host 0 draws for each save distinguishes parts of earlier attempts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/checkpoint/manifest.h"
#include "saver/open_folder.h"

namespace dtrain::checkpoints {

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

}  // namespace dtrain::checkpoints
