// SPDX-License-Identifier: Apache-2.0
#pragma once

// kvfolio_tiers.ModelIdentity, a dataclass, as the library wants it.

#include <string>

#include "bindings.h"
#include "kvfolio/identity.h"

namespace kvfolio::python {

struct HeldModel {
  std::string model, weights, tokenizer, model_dtype, positions, engine, layers, scales;
  ModelIdentity identity{};

  explicit HeldModel(nb::handle object);
  HeldModel(const HeldModel&) = delete;
  HeldModel& operator=(const HeldModel&) = delete;
};

// Identity::fields() as a list of (name, value).
nb::list fields_of(std::span<const IdentityField> fields);

}  // namespace kvfolio::python
