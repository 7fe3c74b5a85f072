"""A conversation agent that answers slowly, word by word, as a language model does.

Runs inside Home Assistant; it gives its text streaming something to stream.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from homeassistant.components import conversation
from homeassistant.components.conversation.const import DATA_COMPONENT
from homeassistant.core import HomeAssistant
from homeassistant.helpers import intent
from homeassistant.helpers.typing import ConfigType

SECONDS_PER_WORD = 0.15
STORY = (
    "Once upon a time there was a small kitchen in a big house. "
    "Every morning the kettle sang, and every evening the radio told of the weather. "
    "One day the radio fell silent, and the kettle wondered what had become of it. "
    "In the end it was only the plug."
)


class Storyteller(conversation.ConversationEntity):
    """Tells one story to whoever asks anything."""

    _attr_name = "Storyteller"
    _attr_unique_id = "storyteller"
    _attr_supports_streaming = True

    @property
    def supported_languages(self) -> Literal["*"]:
        """Any."""
        return "*"

    async def _async_handle_message(
        self, user_input: conversation.ConversationInput, chat_log: conversation.ChatLog
    ) -> conversation.ConversationResult:
        async for _ in chat_log.async_add_delta_content_stream(self.entity_id, _words()):
            pass
        response = intent.IntentResponse(language=user_input.language)
        response.async_set_speech(STORY)
        return conversation.ConversationResult(response, chat_log.conversation_id)


async def _words() -> AsyncIterator[conversation.AssistantContentDeltaDict]:
    yield {"role": "assistant"}
    for word in STORY.split():
        yield {"content": f"{word} "}
        await asyncio.sleep(SECONDS_PER_WORD)


async def async_setup(hass: HomeAssistant, config: ConfigType) -> bool:
    """Add the agent."""
    await hass.data[DATA_COMPONENT].async_add_entities([Storyteller()])
    return True
