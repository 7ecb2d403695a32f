// SPDX-License-Identifier: Apache-2.0
// One sequence without a manager: a vector for each token, in blocks. The lines between the marks
// are a block of README.md, and what this prints is the block behind it.

#include <cstdio>
#include <span>
#include <vector>

#include "kvfolio/token_store.h"

int main() {
  // readme: begin
  using namespace kvfolio;
  TokenStore store = *TokenStore::create({.head_dim_k = 3, .dtype = DType::kF64, .max_tokens = 4});

  for (int token = 0; store.size() < store.max_tokens(); ++token) {
    const std::vector<double> row = {1.0 * token, 2.0 * token, 3.0 * token};
    if (!store.append(row)) return 1;
  }
  const Status full = store.append(std::vector<double>{7, 8, 9});  // nothing was appended
  std::printf("%s\n", full.message().c_str());

  const std::span<const double> last = *store.at<double>(3);  // where it lies: nothing is copied
  std::vector<double> middle(2 * 3);
  if (!store.gather(1, middle)) return 1;  // tokens 1 and 2
  std::printf("token 3 ends in %g, token 1 in %g, token 2 in %g\n", last[2], middle[2], middle[5]);

  const TokenStore copy = *store.copy();  // a deep one, of the blocks in use
  store.clear();                          // keeps the memory
  std::printf("%s\n%s\n", to_string(store).c_str(), to_string(copy).c_str());
  // readme: end
  return copy.size() == 4 && store.empty() ? 0 : 1;
}
