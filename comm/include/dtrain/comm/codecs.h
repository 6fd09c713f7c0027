// The list of gradient codecs. Each codec is a struct: the word that names it in an experiment, its settings, and
// make_codec(), which comm/compression/codecs/NAME.cpp defines. To add a codec, add a struct here, its file there, and
// a description in docs/compression.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "dtrain/base/choices.h"

namespace dtrain::comm {

class Codec;          // comm/compression/codec.h
struct CodecContext;  // the same file

// A codec without settings.
struct PlainCodec {
  static constexpr bool kGathers = false;  // true: the ranks gather each other's codes; false: they reduce them
  template <class Keys>
  void declare_keys(Keys&) {}
  bool operator==(const PlainCodec&) const = default;
};

// Gradients are exchanged without compression.
struct NoCompression : PlainCodec {
  static constexpr const char* kWord = "";
  std::unique_ptr<Codec> make_codec(CodecContext& context) const;  // null
};

// Half of the bytes: float16, with error feedback for values that it rounds to zero.
struct Fp16 : PlainCodec {
  static constexpr const char* kWord = "fp16";
  // Makes the codec (in every struct). CommError if a setting is invalid. The context must outlive the codec.
  std::unique_ptr<Codec> make_codec(CodecContext& context) const;
};

// Half of the bytes: bfloat16.
struct Bf16 : PlainCodec {
  static constexpr const char* kWord = "bf16";
  std::unique_ptr<Codec> make_codec(CodecContext& context) const;
};

// A quarter of the bytes: blocks of int8 with a scale each.
struct Int8 : PlainCodec {
  static constexpr const char* kWord = "int8";
  static constexpr bool kGathers = true;
  std::unique_ptr<Codec> make_codec(CodecContext& context) const;
};

// Two factors of low rank in place of each matrix.
struct PowerSgd {
  static constexpr const char* kWord = "powersgd";
  static constexpr bool kGathers = false;
  int rank = 4;                    // of the approximation, at least 1
  std::int64_t warmup_steps = 10;  // steps at the start that are exchanged without compression
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.integer({"rank", "powersgd: the number of columns of the two factors."}, rank, {1, 1024});
    keys.integer({"warmup_steps", "powersgd: the number of exchanges at the start that are not compressed."},
                 warmup_steps, {0, 2147483647});
  }
  // Returns the rank at which a gradient of rows x columns is compressed; 0: it is sent uncompressed.
  std::size_t rank_of(std::size_t rows, std::size_t columns) const;
  // Returns the `count` values of the first Q of gradient `tensor`, about normally distributed.
  static std::vector<float> first_factor(std::uint64_t seed, std::size_t tensor, std::size_t count);
  // Returns fixed numbers that take the place of a factor's vector `salt` if it is in the span of the earlier ones.
  static std::vector<float> filler(std::size_t length, std::size_t salt);
  std::unique_ptr<Codec> make_codec(CodecContext& context) const;
  bool operator==(const PowerSgd&) const = default;
};

// The largest values of each gradient, with their indices.
struct TopK {
  static constexpr const char* kWord = "topk";
  static constexpr bool kGathers = true;
  double ratio = 0.01;  // the part of each gradient that is sent, above 0, up to 1
  template <class Keys>
  void declare_keys(Keys& keys) {
    keys.number({"ratio", "topk: the part of the elements that is sent, above 0."}, ratio,
                {.min = 0, .max = 1, .above_min = true, .real = true});
  }
  std::unique_ptr<Codec> make_codec(CodecContext& context) const;
  bool operator==(const TopK&) const = default;
};

using Compression = std::variant<NoCompression, Fp16, Bf16, Int8, PowerSgd, TopK>;

// Returns the number of initial steps that this codec leaves uncompressed.
template <class Settings>
std::int64_t warmup_steps_of(const Settings& settings) {
  if constexpr (requires { settings.warmup_steps; }) return settings.warmup_steps;
  return 0;
}

}  // namespace dtrain::comm
