#include "model/update_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace dtrain::train {
namespace {

// Elements that are copied and then updated at once: with state and gradients they fit into a core's second-level
// cache. With fewer elements the calls of the update's kernel would count.
constexpr std::int64_t kCopiedBlock = 64 * 1024;

}  // namespace

void UpdateCopy::add(const FlatRange& range, std::int64_t elements, std::size_t element_size,
                     std::span<const Piece> pieces) {
  for (std::int64_t begin = range.begin; begin < range.end; begin += kCopiedBlock) {
    const FlatRange part{range.group, begin, std::min(begin + kCopiedBlock, range.end)};
    const bool joins = !blocks_.empty() && blocks_.back().range.group == part.group &&
                       blocks_.back().range.end <= part.begin && part.end - blocks_.back().range.begin <= kCopiedBlock;
    if (joins) {
      blocks_.back().range.end = part.end;
    } else {
      blocks_.push_back({part, {}});
    }
    const std::int64_t before = begin - range.begin;
    const std::int64_t count = std::min(elements - before, part.size());
    if (count <= 0) continue;
    for (const Piece& piece : pieces) {
      const std::size_t at = static_cast<std::size_t>(before) * element_size;
      blocks_.back().copies.push_back(
          {{piece.from + at, piece.to + at}, static_cast<std::size_t>(count) * element_size});
    }
  }
}

void UpdateCopy::divide() {
  if (!first_update_) return;
  std::size_t all = 0, taken = 0;
  for (const Block& block : blocks_) all += static_cast<std::size_t>(block.range.size());
  for (Block& block : blocks_) {
    block.at_first = 2 * taken < all;
    taken += static_cast<std::size_t>(block.range.size());
  }
}

void UpdateCopy::copy(Block& block) {
  if (std::exchange(block.done, true)) return;
  const Nanoseconds began = clock_.monotonic();
  for (const Copy& copy : block.copies) stream_copy(copy.piece.to, copy.piece.from, copy.bytes);
  time_ += clock_.monotonic() - began;
}

void UpdateCopy::run(const FlatRange& range, const std::function<void(const FlatRange&)>& update) {
  std::int64_t at = range.begin;  // all elements before this one are updated
  for (Block& block : blocks_) {
    if (block.range.group != range.group || block.range.end <= at || !is_due(block)) continue;
    if (block.range.begin >= range.end) break;
    if (block.range.begin > at) update({range.group, at, block.range.begin});
    const FlatRange common{range.group, std::max(at, block.range.begin), std::min(range.end, block.range.end)};
    if (!block.at_first) copy(block);
    update(common);
    block.updated += common.size();
    if (block.at_first && block.updated == block.range.size()) copy(block);
    at = common.end;
  }
  if (at < range.end) update({range.group, at, range.end});
}

void UpdateCopy::for_due_blocks(const FlatRange& range, const std::function<void(Block&, std::int64_t)>& use) {
  for (Block& block : blocks_) {
    const auto common = std::min(range.end, block.range.end) - std::max(range.begin, block.range.begin);
    if (block.range.group == range.group && common > 0 && is_due(block)) use(block, common);
  }
}

void UpdateCopy::before(const FlatRange& range) {
  for_due_blocks(range, [&](Block& block, std::int64_t) {
    if (!block.at_first) copy(block);
  });
}

void UpdateCopy::after(const FlatRange& range) {
  for_due_blocks(range, [&](Block& block, std::int64_t elements) {
    block.updated += elements;
    if (block.at_first && block.updated == block.range.size()) copy(block);
  });
}

void UpdateCopy::end_update() {
  for (Block& block : blocks_) {
    if (is_due(block)) copy(block);
  }
  finished_ = !std::exchange(first_update_, false);
}

bool UpdateCopy::copies_same(const UpdateCopy& other) const {
  return std::equal(blocks_.begin(), blocks_.end(), other.blocks_.begin(), other.blocks_.end(),
                    [](const Block& a, const Block& b) { return a.range == b.range && a.copies == b.copies; });
}

void UpdateCopy::finish() {
  for (Block& block : blocks_) copy(block);
  finished_ = true;
}

std::vector<std::span<std::byte>> UpdateCopy::targets() const {
  std::vector<std::span<std::byte>> result;
  for (const Block& block : blocks_) {
    for (const Copy& copy : block.copies) result.emplace_back(copy.piece.to, copy.bytes);
  }
  return result;
}

void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  const std::size_t to_line = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  const std::size_t head = std::min(bytes, to_line);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const target = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + at, from + at, bytes - at);
  _mm_sfence();  // before another process is told that the bytes are there
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace dtrain::train
