// One update of an optimizer in one pass over memory, vectorised for the CPU found at run time. The results have the
// same bits as those of libtorch's fused kernels for CPUs (torch.optim with fused=True), except for the bits of a NaN.
// Those kernels were compiled for AVX2 by a compiler that contracts products and sums; each contraction is one fused
// multiply-add here, on AVX2 and AVX-512 alike. A CPU without such an instruction rounds twice, as libtorch does there.
//
// Elements are independent, so a stretch may be updated in pieces and by several threads. But for the last `count` % 8
// elements of a call libtorch's compiler contracted other products than for its vectors of 8. So the sizes of pieces
// must be multiples of 8 for the same bits.
//
// Stateless; any thread. The arrays of a stretch do not overlap and may begin at any element.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace dtrain::train::kernels {

// The bits of a bfloat16.
using Bfloat16 = std::uint16_t;

// Parameters that are adjacent in memory.
struct Stretch {
  std::size_t count = 0;
  float* values = nullptr;
  // One of the two is set. They are only read.
  const float* gradients = nullptr;
  const Bfloat16* narrow_gradients = nullptr;
  // A copy of the new values, rounded to nearest even; null: none. A NaN becomes the same bits as in libtorch: 0xFFFF
  // on AVX2 and AVX-512, else 0x7FC0.
  Bfloat16* shadow = nullptr;
  // A copy of the values before the update; null: none.
  float* old_values = nullptr;
  // Stores of the copies bypass the caches if they begin at multiples of 64 bytes: for arrays larger than the caches.
  bool stream = false;

  // Returns `elements` elements from `begin` on.
  Stretch part(std::size_t begin, std::size_t elements) const;
};

struct SgdStep {
  double rate = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool first = false;  // the first update of these parameters: the momentum is the gradient
};
// `momentum`: as many as values; nullptr if step.momentum is 0.
void update_sgd(const SgdStep& step, const Stretch& stretch, float* momentum);

struct AdamStep {
  double rate = 0;
  double beta1 = 0;
  double beta2 = 0;
  double eps = 0;
  double weight_decay = 0;
  bool decoupled = false;   // AdamW: weight decay shrinks the values, instead of being added to the gradient
  std::int64_t number = 1;  // number of this update, from 1
};
// `average` and `square`: the running averages of the gradient and of its square, as many as values.
void update_adam(const AdamStep& step, const Stretch& stretch, float* average, float* square);

// Computes a row of the gradient of attention's softmax in float32, from and to bfloat16 matrices; the exponential is
// Highway's (1 ULP). Stateless; any thread.
struct AttentionRow {
  const float* scores = nullptr;            // query . key for each key
  const float* of_probabilities = nullptr;  // the gradient of each key's probability
  const float* mask = nullptr;              // added to the scaled scores; may be null
  std::size_t keys = 0;
  std::size_t attended = 0;  // number of first keys; the others have the probability 0
  float scale = 1;           // of the scores
  float logsumexp = 0;       // of the scaled scores with the mask; if not finite, all probabilities are 0
  float weighted = 0;        // the sum of all probabilities times their gradients
};

// probability = exp(scale * score + mask - logsumexp); of_score = scale * probability * (of_probability - weighted).
void attention_row(const AttentionRow& row, Bfloat16* probabilities, Bfloat16* of_scores);

// Softmax cross entropy of rows of scores, and its gradient, in one pass over memory each: a row stays in the cache
// from its maximum to its sum, and the gradient is the only result of the scores' size. Vectorised for the CPU found at
// run time. Arithmetic is in float32, also of bfloat16 scores; the exponential is Highway's (1 ULP). A row's result
// does not depend on other rows, so rows may be divided among threads. Stateless; any thread.
struct CrossEntropyRows {
  std::size_t rows = 0;
  std::size_t classes = 0;
  const std::int64_t* targets = nullptr;  // for each row a class within [0, classes), or `ignored`
  std::int64_t ignored = -100;            // rows with this target have the loss 0, and the gradient 0
  float smoothing = 0;                    // from 0 to 1: share of the target that is spread evenly over all classes
};

// A row's values for backward: the largest score m, and log(sum of exp(score - m)). Both are NaN if a score is NaN or
// +infinity, or all are -infinity.
struct RowSum {
  float maximum = 0;
  float log_sum = 0;
};

// Writes `losses` [rows] and `sums` [rows] from `scores` [rows, classes].
void cross_entropy(const CrossEntropyRows& of, const float* scores, float* losses, RowSum* sums);
void cross_entropy(const CrossEntropyRows& of, const Bfloat16* scores, float* losses, RowSum* sums);

// Writes the gradients of the scores, `gradients` [rows, classes], from those of the rows' losses, `of_losses` [rows].
// `gradients` may be `scores`. bfloat16 is rounded to nearest even.
void cross_entropy_gradient(const CrossEntropyRows& of, const float* scores, const RowSum* sums, const float* of_losses,
                            float* gradients);
void cross_entropy_gradient(const CrossEntropyRows& of, const Bfloat16* scores, const RowSum* sums,
                            const float* of_losses, Bfloat16* gradients);

// Counts samples whose largest score is that of their target. The pass over a row ends at the first larger score, while
// an argmax reads all scores. Stateless; any thread.

// Returns the number of rows of `scores` [rows, classes] whose first largest element is at `targets` [rows], which must
// be within [0, classes). A row with a NaN counts only if `classes` is 1.
std::int64_t count_first_maxima(const float* scores, const std::int64_t* targets, std::size_t rows,
                                std::size_t classes);
std::int64_t count_first_maxima(const Bfloat16* scores, const std::int64_t* targets, std::size_t rows,
                                std::size_t classes);

// GELU with its tanh approximation (Hendrycks and Gimpel, arXiv:1606.08415), and its gradient: x * sigmoid(2 sqrt(2 /
// pi) (x + 0.044715 x^3)), which is 0.5 x (1 + tanh(...)). Arithmetic is in float32, also of bfloat16 values; the
// exponential is Highway's (1 ULP). Element by element; stateless; any thread.

void gelu(const float* from, std::size_t count, float* to);
void gelu(const Bfloat16* from, std::size_t count, Bfloat16* to);

// Writes the gradient of `from` to `to`; `of_result` is the gradient of gelu(from).
void gelu_gradient(const float* from, const float* of_result, std::size_t count, float* to);
void gelu_gradient(const Bfloat16* from, const Bfloat16* of_result, std::size_t count, Bfloat16* to);

// Random numbers as libtorch draws them one by one, several at a time: the Mersenne Twister MT19937 (Matsumoto and
// Nishimura, 1998), of whose words the lower 24 bits count. The caller has the twister alone.
struct MersenneTwister {
  std::array<std::uint32_t, 624> words{};
  std::size_t next = 624;  // word that is drawn next; 624: the words are replaced first
};

struct UniformRange {
  float from = 0, to = 1;
  bool fused = true;  // the product and the sum of a number are rounded once, where the CPU has such an instruction
};

void uniform(MersenneTwister& twister, const UniformRange& range, float* to, std::size_t count);

}  // namespace dtrain::train::kernels
