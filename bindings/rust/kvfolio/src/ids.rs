// SPDX-License-Identifier: Apache-2.0
//
// The ids that calls give and take: numbers that only calls tell apart.

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub(crate) u64);

        impl $name {
            /// The id as a number, for a log or a table of the engine.
            pub fn get(self) -> u64 {
                self.0
            }
            /// The id of a number. Calls check ids: a wrong one is an error.
            pub fn from_raw(number: u64) -> $name {
                $name(number)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
id! {
    /// The id of a sequence. Calls with one that was closed are [`Error::NotFound`](crate::Error::NotFound).
    Sequence
}
id! {
    /// The id of a pin.
    Pin
}
id! {
    /// The id of a load: blocks whose bytes come from elsewhere. [`Manager::begin_load`](crate::Manager::begin_load) gives it,
    /// [`Manager::finish_load`](crate::Manager::finish_load) takes it. One that is forgotten keeps its blocks:
    /// [`SequenceInfo::load`](crate::SequenceInfo) names it.
    Load
}
id! {
    /// The id of a hold: blocks that something copies from. [`Manager::hold_blocks`](crate::Manager::hold_blocks) gives it,
    /// [`Manager::release_hold`](crate::Manager::release_hold) takes it. One that is forgotten keeps its blocks.
    Hold
}
id! {
    /// The number of a step: 1, 2, 3, ... [`Step::commit`](crate::Step::commit) gives it, [`Manager::complete`](crate::Manager::complete) takes it.
    Ticket
}
