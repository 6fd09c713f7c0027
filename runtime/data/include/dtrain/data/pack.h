// Makes files that training reads quickly: shards of pictures, and files of tokens. One thread. Errors are DataError
// for what is read, and SystemError for what cannot be written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dtrain/data/image_folder.h"

namespace dtrain::data {

struct PackOptions {
  std::string name = "shard";  // files are NAME-000000.tar, …
  std::uint64_t shard_bytes = 256 << 20;
  // Pictures are written in a random order (a function of the seed), so that classes are mixed within each shard: the
  // loader shuffles blocks of shards, not single pictures of all shards.
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool check = true;     // decode every picture; a damaged one is an error
  bool replace = false;  // replace existing shards of this name
  // Called from time to time.
  std::function<void(std::int64_t done, std::int64_t all)> progress{};
};

struct PackedShards {
  std::vector<std::filesystem::path> shards;
  std::int64_t samples = 0;
  std::uint64_t bytes = 0;
};

// Reads a CSV file: a line of names, then one line for each picture with its path (relative to the file's folder) and
// its class. If all classes are whole numbers from 0 on, they are not changed; otherwise they are numbered in the order
// of their names.
ImageFolderFiles read_picture_list(const std::filesystem::path& csv, const std::string& path_column,
                                   const std::string& class_column);

// Writes the pictures as shards into `folder`, which is made, and classes.txt, a line for each class. A shard has its
// name once it is complete. DataError if the folder has shards of this name, unless they are to be replaced.
PackedShards pack_pictures(const ImageFolderFiles& pictures, const std::filesystem::path& folder,
                           const PackOptions& options);

struct PackedTokens {
  std::int64_t tokens = 0;
};

inline constexpr std::int64_t kEndOfText = 256;

// Writes the bytes of texts as a file of tokens (uint16, data.format: tokens), each text followed by kEndOfText. Texts
// must be UTF-8. DataError if the file is there already, unless it is to be replaced.
PackedTokens pack_texts(const std::vector<std::filesystem::path>& texts, const std::filesystem::path& file,
                        bool replace = false);

}  // namespace dtrain::data
