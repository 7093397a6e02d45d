//! Roots: where the prompts of a namespace begin.
//!
//! A root lives while somebody holds it or blocks are published below it, so that namespaces that come and go leave nothing
//! behind. Its generation tells a root from the ones that had its place before: what was admitted before
//! [`forget`](super::PrefixTree::forget) can neither find nor publish below the namespace's next root.

use std::collections::HashMap;
use std::sync::Arc;

use super::TreeError;
use super::node::NodeId;

/// The start of a namespace in a [`PrefixTree`](super::PrefixTree).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    place: u32,
    generation: u32,
}

impl Root {
    pub(super) const fn place(self) -> u32 {
        self.place
    }
}

#[derive(Debug, Default)]
pub(super) struct Roots {
    places: Vec<Place>,
    free: Vec<u32>,
    names: HashMap<Arc<[u8]>, u32>,
}

#[derive(Debug)]
pub(super) struct Place {
    /// `None` in a free place.
    name: Option<Arc<[u8]>>,
    generation: u32,
    pub(super) num_holders: u32,
    pub(super) first_child: NodeId,
}

impl Place {
    const FREE: Self = Self {
        name: None,
        generation: 0,
        num_holders: 0,
        first_child: NodeId::NIL,
    };

    /// Canonical bytes of the namespace; empty in a free place.
    pub(super) fn name(&self) -> &[u8] {
        self.name.as_deref().unwrap_or_default()
    }

    const fn is_needed(&self) -> bool {
        self.num_holders > 0 || !self.first_child.is_nil()
    }
}

impl Roots {
    pub(super) fn find(&self, namespace: &[u8]) -> Option<Root> {
        self.names.get(namespace).map(|&place| self.root(place))
    }

    /// The root of a namespace, created on first use, with one holder more.
    pub(super) fn open(&mut self, namespace: &[u8]) -> Root {
        let place = match self.names.get(namespace) {
            Some(&place) => place,
            None => self.create(namespace),
        };
        self.at_mut(place).num_holders += 1;
        self.root(place)
    }

    pub(super) fn retain(&mut self, root: Root) -> Result<(), TreeError> {
        self.get(root).ok_or(TreeError::StaleRoot)?;
        self.at_mut(root.place).num_holders += 1;
        Ok(())
    }

    /// A root that was forgotten has no holders to count.
    pub(super) fn release(&mut self, root: Root) {
        if self.get(root).is_some() {
            let place = self.at_mut(root.place);
            debug_assert!(place.num_holders > 0, "released more often than held");
            place.num_holders = place.num_holders.saturating_sub(1);
            self.drop_if_unneeded(root.place);
        }
    }

    pub(super) fn forget(&mut self, root: Root) -> Result<(), TreeError> {
        let place = self.get(root).ok_or(TreeError::StaleRoot)?;
        if !place.first_child.is_nil() {
            return Err(TreeError::RootNotEmpty);
        }
        self.drop(root.place);
        Ok(())
    }

    pub(super) fn drop_if_unneeded(&mut self, place: u32) {
        if !self.at(place).is_needed() {
            self.drop(place);
        }
    }

    /// `None` if the root was forgotten or dropped.
    pub(super) fn get(&self, root: Root) -> Option<&Place> {
        let place = self.places.get(root.place as usize)?;
        (place.name.is_some() && place.generation == root.generation).then_some(place)
    }

    pub(super) fn at(&self, place: u32) -> &Place {
        &self.places[place as usize]
    }

    pub(super) fn at_mut(&mut self, place: u32) -> &mut Place {
        &mut self.places[place as usize]
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Root> {
        let places = (0..).zip(&self.places);
        places.filter_map(|(place, it)| it.name.is_some().then_some(self.root(place)))
    }

    /// Whether names and places tell the same, and only roots that are needed live.
    pub(super) fn is_consistent(&self) -> bool {
        let live = self.iter().filter_map(|root| self.get(root));
        let mut num_live = 0;
        for place in live {
            num_live += 1;
            let name = place.name.as_ref().and_then(|name| self.find(name));
            let is_named = name
                .and_then(|root| self.get(root))
                .is_some_and(|it| std::ptr::eq(it, place));
            if !is_named || !place.is_needed() {
                return false;
            }
        }
        num_live == self.names.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let names: usize = self.names.keys().map(|name| name.len()).sum();
        let entry = size_of::<(Arc<[u8]>, u32)>() + 1;
        self.places.capacity() * size_of::<Place>() + self.names.capacity() * entry + names
    }

    fn root(&self, place: u32) -> Root {
        let generation = self.at(place).generation;
        Root { place, generation }
    }

    fn create(&mut self, namespace: &[u8]) -> u32 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::FREE);
            u32::try_from(self.places.len() - 1).expect("fewer roots than holders and blocks")
        });
        let name: Arc<[u8]> = namespace.into();
        self.at_mut(place).name = Some(Arc::clone(&name));
        self.names.insert(name, place);
        place
    }

    /// Frees a place for the next generation. One that has had them all is never used again.
    fn drop(&mut self, index: u32) {
        let place = self.at_mut(index);
        let name = place.name.take();
        let next = place.generation.checked_add(1);
        *place = Place {
            generation: next.unwrap_or(place.generation),
            ..Place::FREE
        };
        if next.is_some() {
            self.free.push(index);
        }
        if let Some(name) = name {
            self.names.remove(&name);
        }
    }
}
