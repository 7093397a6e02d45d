// What the operators' source files share: torch's threads.
#pragma once

#include "cpu/threads.h"

namespace looseleaf {

// The threads that torch would use for a call from here.
Threads torch_threads();

}  // namespace looseleaf
