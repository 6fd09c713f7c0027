// Computes a row of the gradient of attention's softmax in float32, from and to bfloat16 matrices; the exponential is
// Highway's (1 ULP). Stateless; any thread.
#pragma once

#include <cstddef>

#include "kernels/update.h"

namespace dtrain::train::kernels {

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

}  // namespace dtrain::train::kernels
