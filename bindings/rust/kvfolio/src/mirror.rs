// SPDX-License-Identifier: Apache-2.0
//
// Structs that C fills and this crate gives on as they are.

/// Defines a struct of fields that the C struct has too, under the same names and of the same types.
macro_rules! mirror {
    ($(#[$meta:meta])* pub struct $name:ident = $c:ident {
        $($(#[$doc:meta])* pub $field:ident: $kind:ty,)*
    }) => {
        $(#[$meta])*
        #[non_exhaustive]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }

        impl $name {
            pub(crate) fn from_c(c: &$crate::sys::$c) -> $name {
                $name { $($field: c.$field,)* }
            }
        }
    };
}
